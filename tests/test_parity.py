"""Networks of the field against PyTorch: a part of `make parity` in which any two settings meet."""

from __future__ import annotations

import pytest

from benchmarks import parity


@pytest.mark.parametrize("row", parity.pairwise(), ids=str)
def test_training_equals_pytorch(row: parity.Row) -> None:
    result = parity.measure(row)
    assert result["passed"], result
