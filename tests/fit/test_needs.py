"""The smallest budget is one number: the same in errors and in a sweep; it is enough, and less is not. Needs torch."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import smidgen
from benchmarks import needs
from smidgen import cli
from smidgen.compiler.fit.misfit import OverLimit
from smidgen.devices.device import Bank, load_device
from smidgen.devices.room import Limit, Need, Overhead, assigned, least_budget
from smidgen.ir import ALIGN
from smidgen.program.timeline import tensor_text
from smidgen.runtime.work import EXACT, Work, has_fast
from smidgen.terminal import bytes_text
from tests.support.motion import motion_net, motion_windows

MOMENTUM = smidgen.SGD(0.01, momentum=0.9)
CASES = [
    (0, "last_layer", 1, None), (0, "bias", 8, "nano33ble"), (4, "full", 2, None), (1, "bias", 4, "nano33ble"),
    (4, "bias", 1, None), (0, "bias", 1, "nano33ble"),
]  # fmt: skip
"""Of the last four a search for a budget reached less than the need that was stated."""


def asked(case: tuple[int, str, int, str | None], budget: int | str, **more: Any) -> dict[str, Any]:
    seed, method, batch, device = case
    return {
        "model": motion_net(seed), "example": motion_windows(batch), "method": method, "device": device,
        "optimizer": MOMENTUM, "kernels": "exact", "memory": smidgen.Memory(budget, **more),
    }  # fmt: skip


def refused(**given: Any) -> OverLimit:
    with pytest.raises(OverLimit) as error:
        smidgen.compile(**given)
    return error.value


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_need_is_one_number_that_is_enough_and_nothing_less_is(case: tuple[int, str, int, str | None]) -> None:
    align = 8 if case[3] else ALIGN
    with needs.without_choices():
        need = refused(**asked(case, 1)).needs_bytes
        stated = bytes_text(need, math.ceil)
        assert smidgen.compile(**asked(case, need, effort=0)).plan.ram_bytes <= need
        for budget in (need - align, need * 4 // 5):
            error = refused(**asked(case, budget))
            assert error.needs_bytes == need
            assert error.what.startswith(f"needs {stated} ({need:,} bytes) of RAM, the budget has ")
    swept = smidgen.sweep(**asked(case, need - align, effort=0))
    assert swept.smallest_bytes == need
    assert swept.at("joint", need).fits
    assert not any(point.fits for point in swept.points if point.budget_bytes < need)


@pytest.mark.parametrize("number", [5001, 5002, 5003, 5004, 5007, 5008, 5009, 5010, 5012, 5013, 5014, 5016])
def test_random_cases_need_what_they_say(number: int, tmp_path: Path) -> None:
    with needs.without_choices():
        assert needs.row_of(number, tmp_path)["faults"] == []


@pytest.mark.parametrize("method", ["bias", "bn+last", "last_layer"])
def test_on_a_board_streams_raise_no_need_though_they_take_stack(method: str) -> None:
    case = (0, method, 1, "nano33ble")
    with needs.without_choices():
        whole, rows = (refused(**asked(case, 1, stream=stream)).needs_bytes for stream in (False, True))
    assert rows < whole if method == "last_layer" else rows == whole


def test_all_needs_on_record_hold() -> None:
    found = json.loads(needs.OUT.read_text())
    assert found["summary"] == needs.summary(found["rows"])
    assert found["summary"]["cases"] == found["summary"]["hold"] > 0
    assert found["summary"]["on_devices"] > found["summary"]["cases"] // 4


def test_batch_norm_with_statistics_of_a_batch_has_one_need_too() -> None:
    model = nn.Sequential(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 126, 3))
    given: dict[str, Any] = {"model": model, "example": motion_windows(8), "bn": "batch", "kernels": "exact"}
    with needs.without_choices():
        need = refused(**given, budget=1024).needs_bytes
        assert refused(**given, budget=need - ALIGN).needs_bytes == need
    plan = smidgen.compile(**given, budget=need).plan
    assert plan.ram_bytes <= need
    assert "statistics" in [d.kind for d in plan.decisions]
    assert smidgen.sweep(**given, memory=smidgen.Memory(effort=0)).smallest_bytes == need


@pytest.mark.skipif(not has_fast(), reason="built without fast kernels")
def test_a_need_with_fast_kernels_counts_their_work_memory() -> None:
    given: dict[str, Any] = {"model": motion_net(), "example": motion_windows(2), "kernels": "fast"}
    with needs.without_choices():
        need = refused(**given, budget=1024).needs_bytes
        assert refused(**given, budget=need - ALIGN).needs_bytes == need
    assert smidgen.compile(**given, memory=smidgen.Memory(need, effort=0)).plan.ram_bytes <= need
    assert smidgen.sweep(**given, memory=smidgen.Memory(effort=0)).smallest_bytes == need
    for work in (EXACT, Work("fast", 1), Work("fast", 2)):
        for ram_bytes in (30_000, 3_000_000, 500_000_000):
            enough = work.budget_for(ram_bytes)
            assert work.left(enough) >= ram_bytes > work.left(enough - 1)


def test_the_smallest_budget_of_a_device_with_banks_holds_each_part_in_one_of_them() -> None:
    from dataclasses import replace

    device = replace(load_device("stm32f746"), ram_banks=(Bank("A", 0, 1000), Bank("B", 4096, 2000)))
    for need in (
        Need(600, 300, Overhead(50, 50), 0),
        Need(1500, 700, Overhead(50, 50), 0),
        Need(50, 950, Overhead(50, 50), 0),
    ):
        least = least_budget(need, device, EXACT)
        assert assigned(Limit.of_budget(least, device), need) is not None
        assert assigned(Limit.of_budget(least - 1, device), need) is None


# -- what is said ------------------------------------------------------------------------------------------------------


def test_what_exceeds_the_device_is_said_first_and_everything_that_fits_is_offered() -> None:
    case = (0, "full", 1, "nano33ble")
    error = refused(**asked(case, "80KB"))
    parameters = sum(p.numel() for p in motion_net().parameters()) * 4
    assert error.what.endswith(
        f", the budget has 80 KB: parameters and momentum alone are {bytes_text(2 * parameters)}"
    )
    assert error.at == ""
    offered = {
        option.arguments["method"]: option.need.ram_bytes for option in error.options if "method" in option.arguments
    }
    assert {"bias", "last_layer", "bn", "bn+last"} <= set(offered)
    for method in ("bn+last", "bias"):
        need = offered[method]
        more = {**asked(case, need, effort=0), "method": method}
        assert smidgen.compile(**more).plan.ram_bytes <= need
        with needs.without_choices():
            assert refused(**{**more, "memory": smidgen.Memory(need - 8)}).needs_bytes == need


def test_a_message_has_no_words_of_the_compiler() -> None:
    names = ["c4.weight:acc", "2.relu@1", "2.relu~2", "2.relu.bits", "fc.weight'", "2.relu@1~3"]
    assert [tensor_text(name) for name in names] == [
        "summed gradient of c4.weight", "2.relu of one sample", "2.relu, recomputed", "signs of 2.relu",
        "fc.weight, updated", "2.relu of one sample, recomputed",
    ]  # fmt: skip
    with needs.without_choices():
        for case in ((0, "last_layer", 4, None), (0, "full", 4, "nano33ble"), (0, "bias", 8, None)):
            text = str(refused(**asked(case, 10_000)))
            assert not re.search(r":acc|@1|~\d|\.bits|step \d+ of", text), text


def test_a_device_without_a_budget_speaks_of_the_device_and_with_one_of_the_budget() -> None:
    given = asked((0, "full", 8, "mkr1000"), 1)
    del given["memory"]
    with needs.without_choices():
        assert ", mkr1000 has 32 KB" in refused(**given).what
        assert ", the budget has 24 KB" in refused(**given, budget="24KB").what


def test_a_sweep_for_a_device_pages_only_if_someone_offers_where(tmp_path: Path) -> None:
    given = {**asked((0, "full", 1, "nano33ble"), 1)}
    del given["memory"]
    swept = smidgen.sweep(**given, memory=smidgen.Memory(effort=0))
    assert not swept.page
    assert "page" not in swept.techniques
    paged = smidgen.sweep(**given, memory=smidgen.Memory(effort=0, page_to=tmp_path / "p"))
    assert paged.page
    assert paged.smallest_bytes < swept.smallest_bytes


def test_a_plan_that_takes_more_than_without_a_budget_says_why() -> None:
    given = asked((0, "full", 4, None), "2MB")
    tight = smidgen.compile(**given).plan
    free = smidgen.compile(**{**given, "memory": None}).plan
    assert tight.ram_bytes > free.ram_bytes
    said = [d for d in tight.decisions if d.kind == "fill"]
    assert [d.short for d in said] == [
        f"takes {bytes_text(tight.ram_bytes - free.ram_bytes)} more than without a limit, to recompute less"
    ]
    assert not [d for d in free.decisions if d.kind == "fill"]


@pytest.mark.skipif(not has_fast(), reason="built without fast kernels")
def test_ram_says_which_kernels_it_is_for_and_what_they_take() -> None:
    fast, exact = (
        smidgen.compile(motion_net(), motion_windows(1), kernels=kernels).plan for kernels in ("fast", "exact")
    )
    assert fast.work_bytes
    assert fast.exact_ram_bytes == exact.ram_bytes == exact.exact_ram_bytes
    assert str(exact) == f"{exact.ram_bytes:,} bytes of RAM, with exact kernels"
    assert str(fast) == (
        f"{fast.ram_bytes:,} bytes of RAM, with fast kernels: {fast.work_bytes:,} of it are their work memory; "
        f"exact kernels take {exact.ram_bytes:,}"
    )


def test_the_command_line_states_the_need_of_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from tests.support.motion import motion_net as build\n")
    words = ["plan", f"{tmp_path / 'net.py'}:build", "--input", "1x6x128", "--method", "bias"]
    assert cli.main([*words, "--budget", "9KB"]) == 1
    said = re.search(r"needs (\S+ KB) \(([\d,]+) bytes\) of RAM, the budget has 9 KB", capsys.readouterr().err)
    assert said
    assert cli.main([*words, "--sweep", "--effort", "0"]) == 0
    text = capsys.readouterr().out
    assert f"fits from {said[1]} " in text
    assert f"{said[2]} bytes; less is refused" in text
    need = int(said[2].replace(",", ""))
    assert cli.main([*words, "--budget", said[1].replace(" ", "")]) == 0
    assert cli.main([*words, "--budget", str(need)]) == 0
    assert cli.main([*words, "--budget", str(need - ALIGN)]) == 1
