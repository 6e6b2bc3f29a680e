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


FAST = [
    parity.Row(net, *(("momentum", 8) if i % 2 else ("adam", 1)), "full", "frozen") for i, net in enumerate(parity.NETS)
]


@pytest.mark.parametrize("row", [pytest.param(r, id=str(r), marks=pytest.mark.xdist_group(r.net)) for r in FAST])
def test_gradients_of_fast_kernels_are_those_of_pytorch(row: parity.Row) -> None:
    result = parity.measure_fast(row)
    assert result["passed"], result
