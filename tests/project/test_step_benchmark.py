"""The speed benchmark: all contestants train the same network, and the figures are what they are said to be.

Contestants that take long to start are compared only with SMIDGEN_ALL_PEERS=1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import make_tables, step
from benchmarks.nets.neutral import layers_of
from benchmarks.nets.workloads import SMALL
from benchmarks.peers import machine, spawn, use_torch
from benchmarks.peers.prepare import case_folder, write_case, write_program
from benchmarks.peers.protocol import Case, Options
from benchmarks.peers.table import BY_NAME, PEERS, Peer
from benchmarks.peers.worker import quartiles, timed

pytestmark = pytest.mark.xdist_group("step_benchmark")
QUICK = ("smidgen", "onnxruntime", "mnn")


# -- the same network ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any, list[float]]]:
    """Name → folder, PyTorch's output, its losses before and after one step."""
    base = tmp_path_factory.mktemp("step")
    found = {}
    for name, method in (("small_images", "full"), ("small_sequences", "full"), ("small_images", "bias")):
        write_case(name, 2, method, lr=0.02, base=base)
        write_program(name, 2, method, 1, lr=0.02, base=base)
        folder = case_folder(name, 2, method, base)
        run = use_torch.build(Case.read(folder), Options(1))
        found[f"{name}-{method}"] = folder, run.forward(), [run.step(), run.step()]
    return found


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_contestant_has_the_outputs_and_losses_of_pytorch(peer: Peer, cases: dict[str, Any]) -> None:
    if (peer.name not in QUICK or peer.environment) and not os.environ.get("SMIDGEN_ALL_PEERS"):
        pytest.skip(f"{peer.name} has an environment of its own, or starts slowly: SMIDGEN_ALL_PEERS=1 compares it")
    absent = spawn.installed(peer).get("error")
    if absent:
        pytest.skip(f"{peer.name} is not installed: {absent}")
    for name, (folder, output, losses) in cases.items():
        if peer.images_only and "images" not in name:
            continue
        assert "error" not in spawn.prepared(peer, folder, 1)
        found = spawn.checked(peer, folder, steps=2)
        assert "error" not in found, found
        np.testing.assert_allclose(found["output"], output, rtol=1e-4, atol=1e-5, err_msg=f"{peer.name} {name}")
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-4, err_msg=f"{peer.name} {name}")
        assert abs(losses[1] - losses[0]) > 1e-3, "the step is too small to show a wrong gradient"


def test_a_measurement_has_all_figures(cases: dict[str, Any]) -> None:
    folder, _, losses = cases["small_images-full"]
    found = spawn.measured(BY_NAME["smidgen"], folder, 1, seconds=0.05)
    assert found["losses"] == pytest.approx(losses, rel=1e-4)
    assert 0 < found["step_s"]["min"] <= found["step_s"]["q1"] <= found["step_s"]["median"] <= found["step_s"]["q3"]
    assert found["cold_s"] > found["step_s"]["median"]
    assert found["steps"] >= 5
    assert 0 < found["anon_bytes"] < 64 << 20
    assert found["facts"]["ram_bytes"] > 0


def test_an_output_is_timed_alone(cases: dict[str, Any]) -> None:
    found = spawn.measured(BY_NAME["smidgen"], cases["small_images-full"][0], 1, 0.05, "output")
    assert found["step_s"]["median"] > 0
    assert "losses" not in found


def test_a_contestant_that_fails_says_why(tmp_path: Path) -> None:
    found = spawn.measured(BY_NAME["smidgen"], tmp_path, 1, seconds=0.05)
    assert "FileNotFoundError" in found["error"]
    lost = Peer("lost", "Lost", "use_lost", environment="never_installed")
    assert spawn.installed(lost) == {"error": "python -m benchmarks.step --setup was not run"}


def test_a_layer_that_contestants_do_not_know_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="the operator cumsum is not in the neutral list"):
        layers_of(Cumulative(), torch.ones(2, 3))


class Cumulative(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


def test_small_networks_have_every_layer_of_the_large_ones(cases: dict[str, Any]) -> None:
    kinds = {layer["op"] for folder, _, _ in cases.values() for layer in Case.read(folder).layers()}
    everything = {"conv", "norm", "clip", "relu", "pad", "max_pool", "mean", "linear", "add", "reshape", "permute",
                  "select", "attention", "layer_norm", "gelu"}  # fmt: skip
    assert kinds == everything
    assert set(SMALL) == {"small_images", "small_sequences"}


# -- figures ---------------------------------------------------------------------------------------------------------


def run_of(median: float, **more: Any) -> dict[str, Any]:
    times = {"min": median / 2, "q1": median * 0.9, "median": median, "q3": median * 1.1}
    return {"version": "1", "steps": 7, "step_s": times, "cold_s": 1.0, "anon_bytes": 1000, "others": 0.1, **more}


def test_rounds_are_combined_by_their_medians() -> None:
    found = step.combined([run_of(3.0), run_of(1.0, others=0.7), {"error": "it crashed"}, run_of(2.0, anon_bytes=4000)])
    assert found["step_s"] == 2.0
    assert found["q1_s"] == pytest.approx(1.8)
    assert found["rounds"] == 3
    assert found["steps"] == 21
    assert found["anon_bytes"] == 1000
    assert found["others"] == 0.7
    assert step.combined([{"error": "it crashed"}]) == {"error": "it crashed"}


def test_the_ratio_is_to_the_fastest_other_that_computed_the_same() -> None:
    results = {
        "smidgen": {"step_s": 2.0, "losses": [1.0, 0.9]},
        "torch": {"step_s": 8.0, "losses": [1.0, 0.9]},
        "jax": {"step_s": 5.0, "losses": [1.0, 0.9001]},
        "mnn": {"step_s": 1.0, "losses": [1.0, 0.95]},
        "tinygrad": {"error": "no"},
        "litert": {"left_out": "slow"},
    }
    facts = {
        "macs": {"train": 4_000_000_000, "infer": 1},
        "ram_bytes": 5,
        "at_a_time": 1,
        "budget": None,
        "page_bytes": 0,
        "stamp": {},
    }
    row = step.finished(step.Row("lenet5", 1, "full", 1), facts, results, [80.0, 100.0], [0.3, 0.1, 0.2])
    assert (row["fastest_other"], row["ratio"]) == ("jax", 2.5)
    assert "PyTorch has [1.0, 0.9]" in results["mnn"]["differs"]
    assert results["smidgen"]["share_of_peak"] == pytest.approx(0.04)  # 8 GFLOP in 2 s of 100 GFLOP/s
    assert row["numpy_s"] == 0.2
    assert row["peak_gflops"] == 100.0


@pytest.mark.parametrize("losses", [[float("nan"), 0.9], [1.0, float("inf")]])
def test_losses_that_are_no_numbers_differ(losses: list[float]) -> None:
    results: dict[str, Any] = {"torch": {"losses": [1.0, 0.9]}, "jax": {"losses": losses}}
    step.mark_different(results)
    assert "differs" in results["jax"]


def test_without_smidgen_or_others_there_is_no_ratio() -> None:
    facts = {"macs": {"train": 1}, "ram_bytes": 5, "at_a_time": 1, "budget": None, "page_bytes": 0, "stamp": {}}
    for results in ({"smidgen": {"step_s": 1.0}}, {"torch": {"step_s": 1.0}}, {"torch": {"error": "no"}}):
        row = step.finished(step.Row("lenet5", 1, "full", 1), facts, dict(results), [1.0], [1.0])
        assert row["ratio"] is None


def test_the_slow_are_not_measured_again() -> None:
    results = {"smidgen": {"step_s": 9.0}, "torch": {"step_s": 1.9}, "jax": {"step_s": 1.0}, "mnn": {"step_s": 2.1}}
    assert [name for name in results if step.repeated(name, results, 1)] == ["smidgen", "torch", "jax"]
    assert not step.repeated("tinygrad", {**results, "tinygrad": {"error": "no"}}, 1)
    assert step.repeated("tinygrad", {}, 0)


def test_what_an_earlier_row_says_saves_a_measurement() -> None:
    before = [
        {**vars(step.Row("lenet5", 8, "full", 1)), "results": {"torch": {"step_s": 1.0}, "jax": {"step_s": 5.0},
                                                              "mnn": {"error": "it crashed"}}},
    ]  # fmt: skip
    two = step.Row("lenet5", 8, "full", 2)
    assert step.left_out(two, BY_NAME["jax"], before) == "5.0 times as slow as PyTorch with one thread"
    assert step.left_out(two, BY_NAME["mnn"], before) == "with one thread: it crashed"
    assert step.left_out(two, BY_NAME["torch"], before) == ""
    more = step.Row("lenet5", 32, "full", 1)
    assert step.left_out(more, BY_NAME["jax"], before) == ""
    before[0]["results"]["jax"]["step_s"] = 11.0
    assert step.left_out(more, BY_NAME["jax"], before) == "a step takes 11 s at batch 8"
    before[0]["results"]["jax"] = {"error": "measure took longer than 300 s"}
    assert step.left_out(more, BY_NAME["jax"], before) == "at batch 8, measure took longer than 300 s"
    assert step.left_out(step.Row("lenet5", 32, "bias", 1), BY_NAME["jax"], before) == ""


def test_a_row_has_those_contestants_that_can_take_part() -> None:
    names = {p.name for p in step.contestants(step.Row("transformer", 1, "full", 1), PEERS)}
    assert names == set(BY_NAME) - {"torch_channels_last"}
    assert [p.name for p in step.contestants(step.Row("resnet8", 1, "bias", 1), PEERS)] == list(step.PARTLY)
    asked = [BY_NAME["jax"]]
    assert step.contestants(step.Row("resnet8", 1, "bias", 1), asked, given=True) == asked


def test_every_row_is_in_the_table_once() -> None:
    rows = step.all_rows()
    assert len(rows) == len(set(rows)) == 2 + 8 * (3 * 2 + 3 * 2)
    assert set(step.QUICK) <= set(rows)


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results" / "step.json"
    report, first, second = step.Report(path), *step.all_rows()[2:4]
    for row in (second, first, second):
        report.add(row, {**vars(row), "sources": {"smidgen": "new"}, "results": {}})
    again = step.Report(path)
    assert [r["batch"] for r in again.rows] == [1, 8]
    assert again.has(first, {"smidgen": "new"})
    assert not again.has(first, {"smidgen": "newer"})
    assert not again.has(step.all_rows()[4], {"smidgen": "new"})
    assert [p.name for p in path.parent.iterdir()] == ["step.json"]


def test_quartiles_lie_between_values() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == {"min": 1.0, "q1": 2.0, "median": 3.0, "q3": 4.0}
    assert quartiles([1.0, 2.0])["median"] == 1.5
    assert quartiles([7.0]) == {"min": 7.0, "q1": 7.0, "median": 7.0, "q3": 7.0}


def test_long_steps_are_timed_at_least_twice() -> None:
    assert len(timed(lambda: None, 0.0, 0.1)) == 5
    assert len(timed(lambda: None, 0.0, 2.0)) == 3
    assert len(timed(lambda: None, 0.0, 9.0)) == 2


def test_the_peak_of_the_machine_is_measured() -> None:
    assert machine.peak_gflops(1) > 1
    assert 0 < machine.numpy_s() < 60


# -- tables ----------------------------------------------------------------------------------------------------------


def report_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    who = {
        "smidgen": {"label": "smidgen", "notes": [], "version": "1", "installed_bytes": 4096},
        "torch": {"label": "PyTorch", "notes": ["a note"], "version": "2", "installed_bytes": 4 << 20},
        "mnn": {"label": "MNN", "notes": [], "absent": "no wheel"},
    }
    return {"machine": {"cpu": "A CPU", "cores": "2"}, "date": "2026-01-02", "contestants": who, "rows": rows}


def row_of(row: step.Row, ours: float, theirs: float, macs: int) -> dict[str, Any]:
    results = {
        "smidgen": {"step_s": ours, "anon_bytes": 2048, "cold_s": 0.2, "others": 0.25},
        "torch": {"step_s": theirs, "anon_bytes": 1 << 20, "cold_s": 3.0, "others": 0.0},
    }
    facts = {
        "macs": {"train": macs, "infer": macs},
        "ram_bytes": 2560,
        "at_a_time": 1,
        "budget": None,
        "page_bytes": 0,
        "stamp": {},
    }
    return step.finished(row, facts, results, [100.0], [0.1])


def test_tables_say_what_the_json_says() -> None:
    rows = [
        row_of(step.Row("gemm256", 1, "output", 1), 0.002, 0.004, 10**8),
        row_of(step.Row("mcunet", 8, "full", 1), 0.010, 0.025, 10**7),
        row_of(step.Row("mcunet", 8, "bias", 1), 0.004, 0.020, 4 * 10**6),
    ]
    text = make_tables.markdown(report_of(rows))
    full = "| 8 | 1 | 10 ms | 25 ms | PyTorch | 2.50 × | 2.0% | 2 KB | 1 MB | 80% | – | 200 ms | 3 s |"
    assert f"| MCUNet-5fps, 128 px {full}" in text
    assert "| MCUNet-5fps, 128 px | 8 | bias | 4 ms | 20 ms | 40% | 40% | 2 KB | 1 MB | 0.002 | 80% |" in text
    assert "| n = 256 | 100% | 50% | 100.0 GFLOP/s |" in text
    assert "| MNN | – | – | absent: no wheel |" in text
    drawn = make_tables.svg(report_of(rows))
    assert drawn.count("<title>") == 2  # rows that are a full step with one thread


def test_tables_of_an_empty_report_are_empty() -> None:
    assert "(not measured yet)" in make_tables.markdown(report_of([]))
    assert make_tables.svg(report_of([])).endswith("</svg>\n")


def test_the_published_tables_are_made_from_the_published_figures() -> None:
    if not step.OUT.exists():
        pytest.skip("docs/results/step.json is not there yet: python -m benchmarks.step")
    report = json.loads(step.OUT.read_text())
    assert step.OUT.with_suffix(".md").read_text() == make_tables.markdown(report)
    assert step.OUT.with_suffix(".svg").read_text() == make_tables.svg(report)
