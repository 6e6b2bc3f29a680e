"""A plan takes no more than what learns, its optimizer state, the forward pass, and what the table says is kept."""

from __future__ import annotations

import json

import pytest

from benchmarks.method_memory import METHODS, MOST, OUT, SPARSE, TTE, row
from benchmarks.nets import NETS


@pytest.mark.parametrize("method", [*METHODS, "sparse"])
@pytest.mark.parametrize("net", ["dscnn", "encoder"])
def test_a_plan_is_within_the_sum_of_the_table(net: str, method: str) -> None:
    found = row(NETS[net], SPARSE[net] if method == "sparse" else method, 1)
    assert found["ratio"] <= MOST
    assert found["ratio"] > 0.6  # the sum is of this network


def test_all_networks_and_methods_on_record_are_within_it() -> None:
    rows = json.loads(OUT.read_text())["rows"]
    assert {(r["net"], r["batch"]) for r in rows} == {(net, batch) for net in SPARSE for batch in (1, 8)}
    assert {r["method"] for r in rows} == {*METHODS, *SPARSE.values()}
    assert [r for r in rows if r["ratio"] > MOST] == []
    assert next(r["ratio"] for r in rows if r["method"] == TTE and r["batch"] == 1) <= 1.1
