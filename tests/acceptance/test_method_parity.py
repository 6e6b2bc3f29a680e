"""Methods against PyTorch: a part of benchmarks.method_parity in which any two settings meet. Needs torch."""

from __future__ import annotations

import pytest

from benchmarks import method_parity

SMALL = ("dscnn", "encoder")


@pytest.mark.parametrize("row", [pytest.param(row, id=str(row)) for row in method_parity.pairwise(SMALL)])
def test_a_method_learns_as_pytorch_with_its_mask(row: method_parity.Row) -> None:
    result = method_parity.measure(row, steps=2)
    assert result["passed"], result
