"""Programs that stream, on an emulated board: the bits of this machine, in the RAM that was planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.boards import signs
from benchmarks.nets import NETS, WEIGHTS
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD
from smidgen.deploy import emulate
from smidgen.deploy.board_run import Report, train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.program.program import Program
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.firmware import small
from tests.support.streams import Restored, Signal, Varied, with_all_streams

SMALL = {"image": (Varied, (2, 1, 16, 12)), "restored": (Restored, (2, 1, 16, 12)), "signal": (Signal, (2, 1, 61))}


def trained(program: Program, x: np.ndarray, y: np.ndarray, folder: Path) -> Report:
    """On the board; every loss and the state are compared with those of this machine."""
    made = write_firmware(folder, program, load_device("stm32f746"))
    assert "#define SMG_ROWS 1" in (folder / "smidgen_config.h").read_text()
    emulate.make(folder)
    report = train_on_board(folder, Samples((x,), y), check=True)
    here = Job(program, kernels="exact")
    here.fit(x, y, progress=False)
    assert report.board == "mps2-an500"
    assert len(report.run.losses) == here.step
    assert report.run.state == here.engine.state.copy().tobytes()
    assert report.sections.ram_bytes == made.ram_bytes
    assert 0.5 * made.stack_bytes <= report.run.stack_used <= made.stack_bytes
    return report


def is_streaming(program: Program) -> bool:
    return any(step.is_stream for step in program.entry_code("train"))


@pytest.mark.parametrize("name", SMALL)
def test_every_loss_and_the_state_are_those_of_this_machine(name: str, tmp_path: Path) -> None:
    need(*EMULATOR)
    torch.manual_seed(0)
    make, shape = SMALL[name]
    entries = api.build(make(), (torch.zeros(shape),), optimizer=SGD(0.1), method="last_layer")
    program = encode(with_all_streams(entries, 2))
    assert is_streaming(program)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, *shape[1:])).astype(np.float32), rng.integers(0, 3, 10)
    trained(program, x, y, tmp_path / "fw")


def test_mcunet_streams_within_the_ram_of_a_board(tmp_path: Path) -> None:
    need(*EMULATOR)
    if not WEIGHTS.is_dir():
        pytest.skip("needs ../shared/data/weights: random weights as int8 would lose something")
    net = NETS["mcunet"]
    job = api.compile(
        net.model(), torch.zeros(1, 3, 128, 128), method="last_layer", optimizer=SGD(0.01), device="stm32f746",
        kernels="exact", memory=api.Memory(const="int8"),
    )  # fmt: skip
    assert is_streaming(job.program)
    x, y = signs()
    report = trained(job.program, x[:1], y[:1], tmp_path / "fw")
    assert report.sections.ram_bytes < load_device("stm32f746").ram_bytes


def test_a_program_without_streams_is_built_without_their_code(tmp_path: Path) -> None:
    write_firmware(tmp_path / "fw", small(), load_device("stm32f746"))
    assert "#define SMG_ROWS 0" in (tmp_path / "fw" / "smidgen_config.h").read_text()
    assert not (tmp_path / "fw" / "smidgen" / "rows.c").exists()
