"""Budget against time: `smidgen.sweep`, `smidgen.max_batch`, and what `plan --sweep` and `--max-batch` print."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks import fit
from smidgen import api, cli
from smidgen.compiler.assemble import encode, placed, sized
from smidgen.compiler.entries import Entries
from smidgen.compiler.fit.candidate import step_spent
from smidgen.compiler.fit.max_batch import Largest
from smidgen.compiler.fit.sweep import MEANING, Point, Sweep
from smidgen.compiler.planner.cost import DISK, Prices
from smidgen.compiler.planner.goal import Goal
from smidgen.devices.room import Limit, need_of
from smidgen.errors import BadOption, DoesNotFit
from smidgen.ir import ALIGN
from smidgen.report import sweep_html, sweep_text
from tests.support import named, paged, small
from tests.support.arguments import arguments
from tests.support.browser import Browser
from tests.support.snapshots import check_snapshot
from tests.support.transcripts import NETS, documented

pytestmark = pytest.mark.xdist_group("page")  # one browser, and one sweep
EVIL = "</script><script>document.title='taken'</script>"


class Deep(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(6, 6, 3, padding=1), nn.Tanh()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


EXAMPLE = torch.randn(4, 1, 12, 12)


@pytest.fixture(scope="module")
def found() -> Sweep:
    return smidgen.sweep(Deep().eval(), EXAMPLE, memory=smidgen.Memory(effort=0, page_to="page"), kernels="exact")


def test_joint_is_at_no_budget_worse_than_a_technique_alone(found: Sweep) -> None:
    assert found.techniques == list(MEANING)
    for point in found.points:
        best = found.at("joint", point.budget_bytes)
        if point.fits:
            assert best.fits
            assert best.seconds <= point.seconds + 1e-12
            assert point.ram_bytes <= point.budget_bytes


def test_a_sweep_reaches_from_the_smallest_budget_to_the_plan_without_one(found: Sweep) -> None:
    assert found.floor_bytes < found.smallest_bytes < found.base_bytes
    assert (found.budgets[0], found.budgets[-1]) == (found.smallest_bytes, found.base_bytes)
    assert found.extra(found.at("none", found.base_bytes)) == 0
    assert not found.at("none", found.smallest_bytes).fits
    assert found.at("joint", found.smallest_bytes).fits
    free = smidgen.compile(Deep().eval(), EXAMPLE, kernels="exact").plan
    assert (found.base_bytes, found.floor_bytes) == (free.ram_bytes, free.ram_bytes - free.arena_bytes)


def test_no_whole_step_is_below_the_bound(found: Sweep) -> None:
    for budget in found.budgets:
        bound = found.at("joint", budget).bound_s
        for name in ("recompute", "page", "chen", "sage", "dtr", "melon"):
            seconds = found.at(name, budget).seconds
            assert seconds is None or bound is None or seconds >= bound * (1 - 1e-6) or budget == found.base_bytes


def test_a_budget_of_the_sweep_compiles(found: Sweep, tmp_path: Path) -> None:
    budget = found.budgets[len(found.budgets) // 2]
    job = smidgen.compile(
        Deep().eval(), EXAMPLE, budget=budget, memory=smidgen.Memory(page_to=tmp_path / "p", effort=0), kernels="exact"
    )
    assert job.plan.ram_bytes <= budget


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    budget = 40_000
    one = smidgen.max_batch(
        Deep().eval(),
        EXAMPLE,
        optimizer=smidgen.SGD(0.01),
        budget=budget,
        memory=smidgen.Memory(effort=0),
        kernels="exact",
    )
    assert one.batch > 1
    assert one.samples_per_s == one.batch / one.seconds
    for batch, whole in ((one.batch, True), (one.batch + 1, False)):
        plan = smidgen.compile(
            Deep().eval(),
            EXAMPLE,
            optimizer=smidgen.SGD(0.01),
            batch=batch,
            budget=budget,
            memory=smidgen.Memory(effort=0),
            kernels="exact",
        ).plan
        assert plan.ram_bytes <= budget
        assert whole or plan.batch < batch  # in micro-batches
    with pytest.raises(DoesNotFit, match=r"the budget has 2\.93 KB"):
        smidgen.max_batch(
            Deep().eval(),
            EXAMPLE,
            optimizer=smidgen.SGD(0.01),
            budget=3000,
            memory=smidgen.Memory(effort=0),
            kernels="exact",
        )


@pytest.mark.parametrize("wrong", [{}, {"budget": "lots"}, {"budget": "1MB", "deadline": "2x"}])
def test_the_largest_batch_within_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        smidgen.max_batch(Deep().eval(), EXAMPLE, **arguments(**wrong))


@pytest.mark.parametrize(("unused", "help"), [("ladder", "leave out Memory(ladder=…)"), ("batch", "leave out batch=")])
def test_the_largest_batch_refuses_what_it_does_not_use(unused: str, help: str) -> None:
    wrong = arguments(budget="1MB", **{unused: {"ladder": ["64KB"], "batch": 4}[unused]})
    with pytest.raises(BadOption, match=f"max_batch does not go with {unused}") as error:
        smidgen.max_batch(Deep().eval(), EXAMPLE, **wrong)
    assert error.value.help == help


def example() -> Sweep:
    points = [Point(name, 4 << 20, 0.1, 1, 4 << 20, 0.02, 0.3) for name in MEANING]
    points += [
        Point("none", 2 << 20, 0.1), Point("recompute", 2 << 20, 0.1, 1, 2_000_000, 0.0246, 0.369),
        Point("page", 2 << 20, 0.1, 1, 2_050_000, 0.1, 0.41), Point("split", 2 << 20, 0.1, 4, 2_000_000, 0.0202, 0.303),
        *(Point(name, 2 << 20, 0.1) for name in ("chen", "sage", "dtr", "melon")),
        Point("joint", 2 << 20, 1.5, 4, 2_000_000, 0.0202, 0.303, 0.0231),
    ]  # fmt: skip
    return Sweep(8, "host", "time", True, 4 << 20, 0.02, 0.3, 600_000, 2 << 20, tuple(points))


def test_a_sweep_reads_as_in_the_snapshot() -> None:
    check_snapshot("sweep.txt", sweep_text.sweep_text(example(), title="nets.py:build", width=100))


def test_the_largest_batch_reads_as_in_the_snapshot() -> None:
    one = Largest(23, 64 << 20, 60 << 20, 0, 1.25, 18.75, "host", small.entries().all_decisions)
    check_snapshot("max_batch.txt", sweep_text.largest_text(one, title="nets.py:build", width=100))


def test_what_cannot_be_smaller_says_so() -> None:
    as_it_is = replace(example(), smallest_bytes=4 << 20, points=example().points[: len(MEANING)])
    assert sweep_text.answer(as_it_is) == "fits from 4 MB only: nothing that was tried makes it smaller"
    assert sweep_text.answer(example()) == "fits from 2 MB (+1.0 % time) to 4 MB (no extra time)"


@pytest.mark.parametrize(
    ("extra", "text"), [(None, "·"), (0.0, "0"), (0.0004, "0"), (0.012, "+1.2 %"), (0.38, "+38 %"), (-0.021, "-2.1 %")]
)
def test_shares_are_short(extra: float | None, text: str) -> None:
    assert sweep_text.share_text(extra) == text


def test_the_page_needs_nothing_but_itself_and_trusts_no_name() -> None:
    text = sweep_html.html_page(example(), title=EVIL)
    assert "<script>document" not in text
    assert not re.findall(r"(?:src|href)=(?![\"']data:)", text)
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text


@pytest.mark.parametrize(("size", "scheme"), [((1280, 900), "light"), ((360, 740), "dark")])
def test_the_page_shows_the_exact_point_that_is_pointed_at(
    size: tuple[int, int],
    scheme: str,
    browser: Browser,
) -> None:
    browser.open(sweep_html.html_page(example(), title=EVIL), size, scheme)
    assert browser.errors() == []
    assert browser.text("#title") == EVIL
    assert browser.text("#answer").startswith("fits from 2 MB")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.box("#picture")
    x, y, wide, high = browser.run(
        "const all = [...document.querySelectorAll('.picture svg > path, .picture svg > rect')];"
        "const b = all.find((m) => m.style.fill === 'var(--c-page)').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height]"
    )
    browser.point(x + wide / 2, y + high / 2)
    tip = browser.text("#tip")
    assert "within 2,097,152 bytes (2 MB)" in tip
    assert "+400 % time: 100 ms and 0.41 J a step" in tip
    assert "takes 2,050,000 bytes" in tip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("user")
    (place / "nets.py").write_text(NETS)
    return place


def test_the_command_line_sweeps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", f"{folder / 'nets.py'}:build", "--input", "8x1x8x8", "--sweep", "--effort", "0"]
    assert cli.main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == documented()["plan with sweep"]
    assert list(data["techniques"]) == [name for name in MEANING if name != "page"]
    keys = {"technique", "budget_bytes", "solve_s", "parts", "ram_bytes", "seconds", "joules", "bound_s", "extra"}
    assert set(data["points"][0]) == keys
    assert cli.main([*words, "--page-to", str(folder / "p"), "--html", str(folder / "s.html"), "--budget", "9KB"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("fits from ")
    assert " 9 KB " in text
    assert (folder / "s.html").read_text().count("<html") == 1
    assert not (folder / "p").exists()


def test_the_command_line_finds_the_largest_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", f"{folder / 'nets.py'}:build", "--input", "8x1x8x8", "--max-batch", "--effort", "0"]
    assert cli.main([*words, "--budget", "40KB", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == documented()["plan with max batch"]
    assert data["ram_bytes"] <= data["budget_bytes"] == 40 << 10
    assert cli.main([*words, "--budget", "2KB"]) == 1
    assert "error[E201]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["--sweep --max-batch", "--sweep --ladder 1MB", "--sweep --deadline 2x", "--max-batch", "--max-batch --budget 1MB "
     "--batch 4", "--max-batch --budget 1MB --html x.html", "--sweep --effort much", "--sweep --all-layers"],
)  # fmt: skip
def test_questions_that_mean_nothing_are_refused(words: str, folder: Path) -> None:
    assert cli.main(["plan", f"{folder / 'nets.py'}:build", "--input", "8x1x8x8", *words.split()]) == 2


def test_the_published_tables_are_what_the_results_say() -> None:
    report = json.loads(fit.OUT.read_text())
    assert fit.OUT.with_suffix(".md").read_text() == fit.tables(report)
    assert fit.OUT.with_suffix(".svg").read_text() == fit.picture(report)
    assert [row["net"] for row in report["rows"] if row["broken"]] == []


# -- what the sweep stands on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [small.entries(evaluate=True), named.entries(accumulate=True)])
def test_sizes_are_those_of_the_program_that_is_not_made_for_it(entries: Entries) -> None:
    program = encode(entries, proven=False)
    host = Limit.of_budget(1 << 40)
    made = sized(entries, host)
    assert replace(made.need, flash_bytes=program.flash_bytes) == need_of(None, program)
    assert made.evaluates == ("evaluate" in program.entries)


def test_what_cannot_be_within_the_room_is_not_searched_for() -> None:
    entries = named.entries()
    free, hopeless = (placed(entries, ALIGN, rooms)[0]["train"] for rooms in ({}, {"train": 1}))
    assert hopeless.lower_bound_bytes == free.lower_bound_bytes
    assert hopeless.arena_bytes >= free.arena_bytes


def test_a_step_that_pages_is_priced_by_what_it_moves() -> None:
    entries = paged.paged(named.entries())
    prices = Prices(1e9, 1e30, 0.0, page=replace(DISK, in_bytes_per_s=1e3, out_bytes_per_s=1e3, watts=3.0), watts=2.0)
    moved = encode(entries, proven=False).meta["plan"]["paged"]["train"]
    plain, out = (step_spent(e, Goal(prices=prices)) for e in (named.entries(), entries))
    assert out.seconds - plain.seconds == pytest.approx(sum(moved) / 1e3, rel=1e-2)
    assert out.joules - plain.joules == pytest.approx(3 * (out.seconds - plain.seconds), rel=1e-2)


def test_a_program_that_pages_is_trained_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = encode(paged.paged(api.build(Deep().eval(), EXAMPLE)))
    assert program.page_bytes > 0
    (tmp_path / "net.smg").write_bytes(program.to_bytes())
    np.savez(tmp_path / "d.npz", x=EXAMPLE.numpy(), y=np.arange(4) % 3)
    words = [str(tmp_path / "net.smg"), "--data", str(tmp_path / "d.npz")]
    for command in ("train", "infer"):
        assert cli.main([command, *words, "--page-to", str(tmp_path / "page.bin")]) == 0
        assert cli.main([command, *words]) != 0
        assert "page" in capsys.readouterr().err
