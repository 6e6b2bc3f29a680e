"""A new class on an emulated board: learned from 20 samples with the bits of this machine, kept in flash through resets
and power cuts. Needs the ARM compiler, QEMU, torch and scikit-learn."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smidgen
from smidgen.deploy import emulate
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.errors import BadData
from smidgen.program.program import Program
from smidgen.train.batches import Arrays, order
from smidgen.train.job import Job
from smidgen.train.loop import training_data
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.new_classes import nine_known

C = Path(__file__).parents[1] / "c"
SLOT_BYTES, HEADER_BYTES, UNIT, CUT = 131072, 32, 8, 42  # as in new_class.c and slots.h
EPOCHS = 20
NO_CUT = 0xFFFF_FFFF
NOTHING = "no slot holds a complete state of this program"


@dataclass(frozen=True)
class Board:
    """A built firmware, the digits, and the steps in which it learns a new one, in the order of `fit`."""

    elf: Path
    program: Program
    x: Any
    y: Any
    chosen: Any
    steps: list[emulate.Step]

    def life(
        self, flash: Path, steps: Sequence[emulate.Step] = (), predict: bool = False, power: int = NO_CUT
    ) -> tuple[int, list[str], emulate.BoardRun | None]:
        """From one reset to the next: exit status, what was printed, and the result unless the power went."""
        batch, test, folder = self.program.batch, self.x[1200:] if predict else self.x[:0], flash.parent
        parts = [test[i : i + batch] for i in range(0, len(test), batch)]
        tested = [([part], len(part)) for part in parts]
        trained, predicted = emulate.write_data(folder / "data.bin", self.program, steps, tested)
        (folder / "power.bin").write_bytes(struct.pack("<I", power))
        status, said = emulate.execute(self.elf, "mps2-an500", folder, seconds=600)
        if status:
            return status, said.splitlines(), None
        result = (folder / "result.bin").read_bytes()
        return 0, said.splitlines(), emulate.read_result(result, self.program, len(trained), predicted, None)

    def whole_life(
        self, flash: Path, said: list[str], steps: Sequence[emulate.Step] = (), predict: bool = False
    ) -> emulate.BoardRun:
        status, printed, run = self.life(flash, steps, predict)
        assert (status, printed) == (0, said)
        assert run is not None
        return run

    def accuracy(self, run: emulate.BoardRun, labels: Any) -> float:
        """Over the samples of those labels that were never trained on."""
        y, found = self.y[1200:], scores(run).argmax(1)
        which = np.isin(y, labels)
        return float((found[which] == y[which]).mean())


def scores(run: emulate.BoardRun) -> Any:
    return np.concatenate([outputs[0] for outputs in run.outputs])


@dataclass(frozen=True)
class Lives:
    before: emulate.BoardRun
    learned: emulate.BoardRun
    flash: Path  # as the second one left it


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    need(*EMULATOR)
    x, y, model, chosen = nine_known(8)
    job = smidgen.compile(
        model, x[:16], method="last:2", optimizer=smidgen.SGD(0.02, momentum=0.9), classes=smidgen.Classes(spare=4)
    )
    folder = tmp_path_factory.mktemp("classes") / "fw"
    write_firmware(folder, job.program, load_device("stm32f746"))
    emulate.make(folder, f"MAIN={C / 'new_class.c'}")
    job.add_class("new")  # in this job, so that its label is accepted; the program does not have it
    batches = training_data(job, x[chosen], y[chosen], EPOCHS, job.program.batch)
    assert isinstance(batches, Arrays)
    epochs = [batches.epoch(order(job.engine.state.seed, epoch, batches.samples)) for epoch in range(EPOCHS)]
    return Board(folder / "mps2-an500.elf", job.program, x, y, chosen, [step for epoch in epochs for step in epoch])


@pytest.fixture(scope="module")
def lives(board: Board, tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """One without anything new, and one in which a class is added and learned."""
    flash = tmp_path_factory.mktemp("lives") / "flash.bin"
    flash.write_bytes(b"\x5a" * 2 * SLOT_BYTES)  # whatever was there
    before = board.whole_life(flash, [NOTHING, "no name"], predict=True)
    return Lives(before, board.whole_life(flash, [NOTHING, "new"], board.steps, predict=True), flash)


def test_a_digit_never_seen_is_learned_on_the_board_with_the_bits_of_this_machine(board: Board, lives: Lives) -> None:
    host, fitted = Job(board.program, kernels="exact"), Job(board.program, kernels="exact")
    assert np.array_equal(scores(lives.before)[:, :9], host.predict(board.x[1200:]))
    assert lives.before.state == host.engine.machine.state.tobytes()
    assert (host.add_class("new"), fitted.add_class("new")) == (9, 9)
    losses = np.array([host.engine.train(arrays, n) for arrays, n in board.steps], np.float32)
    fitted.fit(board.x[board.chosen], board.y[board.chosen], epochs=EPOCHS, progress=False)
    assert lives.learned.losses.tobytes() == losses.tobytes()
    assert lives.learned.state == host.engine.machine.state.tobytes() == fitted.engine.machine.state.tobytes()
    assert scores(lives.learned)[:, :10].tobytes() == host.predict(board.x[1200:]).tobytes()
    assert board.accuracy(lives.learned, [9]) >= 0.8
    assert board.accuracy(lives.learned, range(9)) >= board.accuracy(lives.before, range(9)) - 0.05


def test_what_was_learned_survives_a_reset(board: Board, lives: Lives, tmp_path: Path) -> None:
    flash = Path(shutil.copy(lives.flash, tmp_path))
    again = board.whole_life(flash, ["restored", "new"], predict=True)
    assert again.state == lives.learned.state
    assert scores(again).tobytes() == scores(lives.learned).tobytes()
    damaged = bytearray(flash.read_bytes())
    damaged[1000] ^= 1
    flash.write_bytes(damaged)
    assert board.whole_life(flash, [NOTHING, "no name"]).state == lives.before.state


def test_a_save_that_is_cut_short_leaves_the_state_before(board: Board, lives: Lives, tmp_path: Path) -> None:
    flash = Path(shutil.copy(lives.flash, tmp_path))
    host = Job(board.program, kernels="exact")
    host.engine.machine.state[:] = np.frombuffer(lives.learned.state, np.uint8)
    whole = SLOT_BYTES + HEADER_BYTES + -(-board.program.state_bytes // UNIT) * UNIT  # erased, then written
    for power in (0, SLOT_BYTES // 2, SLOT_BYTES + board.program.state_bytes // 2, whole - HEADER_BYTES, whole - 1):
        assert board.life(flash, board.steps[:1], power=power)[0] == CUT
        assert board.whole_life(flash, ["restored", "new"]).state == lives.learned.state, power
    later = board.whole_life(flash, ["restored", "new"], board.steps[:1])
    host.engine.train(*board.steps[0])
    assert later.state == host.engine.machine.state.tobytes() != lives.learned.state
    # Now the other slot has the newest state; a save that is cut goes to the first one.
    assert board.life(flash, board.steps[1:2], power=whole - 1)[0] == CUT
    assert board.whole_life(flash, ["restored", "new"]).state == later.state


def test_smidgen_run_adds_a_class(tmp_path: Path) -> None:
    need(*EMULATOR)
    x, y, model, chosen = nine_known(3)
    job = smidgen.compile(model, x[:8], method="last_layer", classes=smidgen.Classes(spare=2))
    folder = tmp_path / "fw"
    write_firmware(folder, job.program, load_device("stm32f746"))
    emulate.make(folder)
    data = Samples((x[chosen],), y[chosen])
    with pytest.raises(BadData, match="label 9 in sample 0") as error:
        train_on_board(folder, data, steps=2)
    assert "--add-class NAME" in error.value.help
    saved = tmp_path / "out.smg"
    report = train_on_board(folder, data, steps=20, check=True, save=str(saved), add_classes=["three"], count=False)
    assert report.same_as_host
    assert report.before is not None
    assert report.accuracy is not None
    assert report.accuracy > report.before
    assert f"{report.before:.2%} before, {report.accuracy:.2%} after" in report.to_text()
    assert smidgen.load(saved).classes[9] == "three"
