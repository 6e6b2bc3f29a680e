"""Networks of the field against PyTorch: a part of `make parity` in which any two settings meet."""

from __future__ import annotations

import pytest

from benchmarks import parity


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=pytest.mark.xdist_group(row.net)) for row in parity.pairwise()]
)
def test_training_equals_pytorch(row: parity.Row) -> None:
    result = parity.measure(row)
    assert result["passed"], result
