"""What the step benchmark is held to: rows that miss a floor are found, and so are rows that are not there."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import goals
from benchmarks.step import all_rows


def row_of(net: str, batch: int, method: str, threads: int, **other: Any) -> dict[str, Any]:
    """A row that meets every goal."""
    ours = {"step_s": 0.5 if method == "full" else 0.2, "anon_bytes": 100, "cold_s": 0.2, "share_of_peak": 0.9}
    theirs = {"step_s": 3.0, "anon_bytes": 1000}
    return {"net": net, "batch": batch, "method": method, "threads": threads, "ratio": 6.0, "ram_bytes": 100,
            "macs": 100 if method == "full" else 40, "numpy_s": 0.15,
            "results": {"smidgen": {**ours, **other}, "torch": theirs}}  # fmt: skip


def all_good() -> list[dict[str, Any]]:
    return [row_of(r.net, r.batch, r.method, r.threads) for r in all_rows()]


def products(share: float = 0.9) -> dict[str, Any]:
    layers = [
        {"params": [1, n, n, n, 0], "macs": n**3, "seconds": {"forward": 2 * n**3 / share / 1e11}} for n in (256, 1024)
    ]
    return {"nets": {"products": {"peak_flops": 1e11, "layers": layers}}}


def test_a_table_that_meets_every_goal_passes() -> None:
    lines: list[str] = []
    assert goals.said(all_good(), products(), lines.append)
    assert not any("missed" in line for line in lines)


@pytest.mark.parametrize(
    ("row", "change", "goal"),
    [
        (("lenet5", 1, "full", 2), {"ratio": 1.4}, "speed, floor"),
        (("resnet18", 8, "full", 1), {"ratio": 0.79}, "speed, floor"),
        (("dscnn", 8, "full", 1), {"anon_bytes": 334}, "memory of PyTorch's"),
        (("dscnn", 8, "bias", 1), {"anon_bytes": 101}, "memory of PyTorch's"),
        (("dscnn", 1, "bias", 1), {"anon_bytes": 111}, "memory of the plan"),
        (("mcunet", 32, "bias", 1), {"step_s": 0.26}, "time in proportion"),
        (("mcunet", 1, "full", 1), {"cold_s": 0.22}, "cold start above numpy's"),
        (("mobilenetv2_100", 8, "full", 1), {"share_of_peak": 0.34}, "share of peak of a step"),
    ],
)
def test_a_missed_goal_is_named(row: tuple[str, int, str, int], change: dict[str, float], goal: str) -> None:
    rows = all_good()
    bad = next(r for r in rows if (r["net"], r["batch"], r["method"], r["threads"]) == row)
    bad.update({k: v for k, v in change.items() if k in bad})
    bad["results"]["smidgen"].update({k: v for k, v in change.items() if k not in bad})
    assert goal in {v.goal for v in goals.verdicts(rows) if not v.met and v.row == goals.name_of(bad)}
    assert not goals.said(rows, products(), lambda line: None)


def test_a_row_that_was_not_measured_is_missing() -> None:
    lines: list[str] = []
    assert not goals.said(all_good()[1:], products(), lines.append)
    assert lines[-1] == "not measured: 1 rows: gemm256 batch 1 output, 1 thread"


def test_targets_are_said_but_need_not_be_met() -> None:
    rows = all_good()
    for row in rows:
        row["ratio"] = 1.6
    lines: list[str] = []
    assert goals.said(rows, products(), lines.append)
    assert any("missed  lenet5 batch 1 full" in line for line in lines)


def test_slow_products_are_missed() -> None:
    lines: list[str] = []
    assert not goals.said(all_good(), products(0.87), lines.append)
    assert "  missed  1024 by 1024: 0.87 < 0.88" in lines
