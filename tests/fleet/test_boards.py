"""A board of a gateway learns the bits of this machine, whatever the line does: the firmware's own C, under sanitizers,
at the end of a line that loses, changes, repeats and reorders, with power that goes at any byte."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import fleet
from smidgen.errors import BoardRefused, BoardSilent, WrongVersion
from smidgen.fleet.board import Board
from smidgen.fleet.boards import BoardClient, greeted
from smidgen.fleet.client import Reply
from smidgen.fleet.frames import Refusal
from smidgen.program.program import Program
from tests.support.bad_lines import Bad, LocalBoard

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")
ASKED: dict[str, Any] = {"epochs": 2, "seed": 3, "round": 2, "lr": 0.05}


@functools.cache
def made(classes: int = 3) -> bytes:
    """With momentum and dropout: what a step does depends on more than weights; batches of 8 in parts of 4."""
    torch.manual_seed(classes)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, classes))
    job = smidgen.compile(
        model, torch.randn(8, 6), optimizer=smidgen.SGD(0.1, momentum=0.9), kernels="exact", batch=4,
        memory=smidgen.Memory(accumulate=True),
    )  # fmt: skip
    return job.program.to_bytes()


class Case:
    """A program in a file, 21 samples, and what this machine makes of them."""

    def __init__(self, folder: Path, classes: int = 3) -> None:
        self.folder, self.path = folder, folder / "net.smg"
        self.path.write_bytes(made(classes))
        self.program = Program.open(self.path)
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((21, 6)).astype(np.float32)
        self.y = self.x[:, :3].argmax(1)
        self.client = fleet.Client(self.path, self.x, self.y, part=4, kernels="exact")
        self.values = fleet.Terms.of(self.client.open()).values_of(self.client.open())

    @functools.cached_property
    def expected(self) -> Reply:
        return self.client.train(self.values, **ASKED)

    def on(self, line: LocalBoard, **options: Any) -> tuple[BoardClient, Board]:
        board = Board("here", line=line, attempts=60, seconds=0.5)
        return BoardClient(self.path, self.x, self.y, part=4, board=board, **options), board

    def check(self, reply: Reply) -> None:
        assert {name: value.tobytes() for name, value in reply.values.items()} == {
            name: value.tobytes() for name, value in self.expected.values.items()
        }
        for name in ("num-examples", "steps", "loss"):
            assert reply.counters[name] == self.expected.counters[name], name


def another(case: Case) -> Case:
    folder = case.folder / "other"
    folder.mkdir()
    return Case(folder, classes=5)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.parametrize("rows", [4, 9, 40])
def test_a_board_learns_the_bits_of_this_machine(case: Case, rows: int) -> None:
    """With room for a few samples, and for all of them, which are then sent once."""
    line = LocalBoard(case.program, case.folder / "b", rows_bytes=rows * 28)
    client, board = case.on(line)
    case.check(client.train(case.values, **ASKED))
    assert (board.facts.rows, board.facts.row_bytes, board.resent) == (rows, 28, 0)
    (outputs,) = client.predict()
    job = smidgen.load(case.path, kernels="exact")
    job.engine.state.set_all(board.state())
    assert outputs.tobytes() == np.asarray(job.predict(case.x)).tobytes()
    line.cut()


def test_the_proximal_term_is_that_of_this_machine(case: Case) -> None:
    line = LocalBoard(case.program, case.folder / "b")
    reply = case.on(line)[0].train(case.values, proximal_mu=0.3, **ASKED)
    here = case.client.train(case.values, proximal_mu=0.3, **ASKED)
    assert all(np.array_equal(reply.values[name], here.values[name]) for name in here.values)
    assert not all(np.array_equal(here.values[name], case.expected.values[name]) for name in here.values)
    line.cut()


def test_a_serial_port_is_a_line_too(case: Case) -> None:
    """A pseudo-terminal, opened, closed and opened again."""
    line = LocalBoard(case.program, case.folder / "b")
    master, port = os.openpty()
    running = subprocess.Popen(line.command, stdin=master, stdout=master)
    try:
        board = Board(os.ttyname(port), attempts=60, seconds=0.5)
        client = BoardClient(case.path, case.x, case.y, part=4, board=board)
        for _ in range(2):
            case.check(client.train(case.values, **ASKED))
    finally:
        running.kill()
        running.wait()
        os.close(master)
        os.close(port)


@pytest.mark.parametrize("seed", range(4))
def test_a_bad_line_changes_nothing(case: Case, seed: int) -> None:
    out, back = Bad(seed, 15), Bad(100 + seed, 15)
    line = LocalBoard(case.program, case.folder / "b", rows_bytes=12 * 28, out=out, back=back)
    client, board = case.on(line)
    board._seconds, board._attempts = 0.05, 400
    case.check(client.train(case.values, **ASKED))
    assert board.resent > 3
    assert sum(out.done.values()) > 3
    assert line.starts == 1, "nothing that a line does ends the program"
    line.cut()


@pytest.mark.parametrize("slots", [True, False], ids=["slots", "no slots"])
def test_the_power_may_go_at_any_byte(case: Case, slots: bool) -> None:
    line = LocalBoard(case.program, case.folder / "whole", slots=slots)
    case.check(case.on(line)[0].train(case.values, **ASKED))
    line.cut()
    every = line.sent
    for cut in [*range(0, 90, 15), *range(90, every, every // 14), every - 1]:
        line = LocalBoard(case.program, case.folder / f"{cut}", slots=slots, cut_after=cut)
        client, board = case.on(line)
        board._seconds = 0.2
        case.check(client.train(case.values, **ASKED))
        assert line.starts == 2, cut
        line.cut()


def test_after_a_reset_a_round_goes_on_from_what_was_saved(case: Case) -> None:
    """Fewer steps are computed twice than without slots."""
    steps = {}
    for slots in (True, False):
        line = LocalBoard(case.program, case.folder / f"{slots}", slots=slots)
        client, board = case.on(line, saves=6)
        done = 0
        step = board.step

        def counted(*given: Any, step: Any = step, line: LocalBoard = line) -> np.float32:
            nonlocal done
            done += 1
            if done == 8:
                line.cut()
            return np.float32(step(*given))

        board.step = counted  # type: ignore[method-assign]
        case.check(client.train(case.values, **ASKED))
        steps[slots] = done
        line.cut()
    assert steps[True] < steps[False]


def test_another_program_comes_over_the_line_and_is_checked_first(case: Case) -> None:
    other = another(case)
    line = LocalBoard(other.program, case.folder / "b", recipe_bytes=len(case.program.bare_bytes()))
    client, board = case.on(line)
    case.check(client.train(case.values, **ASKED))
    assert not board.facts.runs_its_own
    job = case.client.open()
    bare = bytearray(job.program.bare_bytes())
    bare[len(bare) // 2] ^= 4
    with pytest.raises(BoardRefused) as found:
        board.use_recipe(bytes(bare))
    assert found.value.number == Refusal.BAD_RECIPE
    assert "damaged" in str(found.value)
    assert board.hello().runs_its_own, "it goes on with the program of its firmware"
    with pytest.raises(BoardRefused) as found:
        board.use_recipe(bytes(bare) + bytes(4096))
    assert found.value.number == Refusal.NO_ROOM
    line.cut()


def test_a_board_without_room_for_it_says_so_by_number(case: Case) -> None:
    other = another(case)
    line = LocalBoard(other.program, case.folder / "b")
    board = Board("here", line=line)
    with pytest.raises(BoardRefused) as found:
        board.use_recipe(case.program.bare_bytes())
    assert found.value.number == Refusal.NO_RECIPES
    with pytest.raises(WrongVersion, match="has no room for another one"):
        greeted(board, case.client.open())
    line.cut()


def test_what_makes_no_sense_is_refused_by_number_and_the_state_stays(case: Case) -> None:
    line = LocalBoard(case.program, case.folder / "b", slots=False, rows_bytes=10 * 28)
    board = Board("here", line=line)
    before = board.hello().state_crc
    label = [case.x[0].tobytes() + np.int32(7).tobytes()]
    board.set_rows(0, label)
    for ask, number in [
        (lambda: board.step([10], 1), Refusal.RANGE), (lambda: board.step([], 0), Refusal.LENGTH),
        (lambda: board.step([0] * 5, 5), Refusal.RANGE), (lambda: board.step([0], 2, 1), Refusal.PART),
        (lambda: board.step([0, 0], 1), Refusal.PART), (lambda: board.save(), Refusal.NO_SLOTS),
        (lambda: board.infer([0], 10**6), Refusal.RANGE), (lambda: board.set_rows(10, label), Refusal.RANGE),
    ]:  # fmt: skip
        with pytest.raises(BoardRefused) as found:
            ask()
        assert found.value.number == number, found.value
    assert board.hello().state_crc == before
    with pytest.raises(BoardRefused, match="a label is not the number of a class") as found:
        board.step([0], 1)
    assert found.value.number == Refusal.STOPPED
    with pytest.raises(BoardRefused) as found:
        board.hash()
    assert found.value.number == Refusal.NOT_WHOLE, "a step that was stopped may have changed a part of the state"
    line.cut()


def test_a_board_that_says_nothing_is_an_error_after_some_attempts(case: Case) -> None:
    line = LocalBoard(case.program, case.folder / "b", out=lambda data: iter(()))
    board = Board("here", line=line, attempts=3, seconds=0.01)
    with pytest.raises(BoardSilent, match="does not answer HELLO"):
        board.hello()
    assert board.resent == 2
    line.cut()
