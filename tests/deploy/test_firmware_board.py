"""Training on emulated boards: the same bits as here, in the RAM that was planned, with memory protection on."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.boards import CASES, measured
from benchmarks.nets import WEIGHTS
from smidgen import api, cli
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD
from smidgen.deploy import emulate
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import bare_bytes, write_firmware
from smidgen.devices.device import Bank, load_device
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.firmware import small
from tests.support.transcripts import documented

C = Path(__file__).parents[1] / "c"


@pytest.mark.parametrize("name", CASES)
def test_every_loss_and_the_state_are_those_of_this_machine(name: str, tmp_path: Path) -> None:
    need(*EMULATOR)
    case = CASES[name]
    if case.const == "int8" and not WEIGHTS.is_dir():
        pytest.skip("needs ../shared/data/weights: random weights as int8 would lose something")
    row = measured(case, case.test_steps, tmp_path / "fw")
    assert row["losses_equal"]
    assert row["state_equal"]
    assert row["ram_linked_bytes"] == row["ram_plan_bytes"] <= row["ram_device_bytes"]
    assert 0.8 * row["stack_bytes"] <= row["stack_used_bytes"] <= row["stack_bytes"]


def test_a_step_in_parts_is_that_of_the_host(tmp_path: Path) -> None:
    """Steps of 5 samples, 2 at a time: 5, 5 and 3, one of them with a label that counts for nothing."""
    need(*EMULATOR)
    program = small(accumulate=True)
    program = replace(program, meta={**program.meta, "plan": {**program.meta["plan"], "step_samples": 5}})
    made = write_firmware(tmp_path / "fw", program, load_device("stm32f746"))
    assert "#define NET_STEP_SAMPLES 5 " in (tmp_path / "fw" / "net_program.h").read_text()
    emulate.make(tmp_path / "fw")
    x = np.random.default_rng(0).standard_normal((13, 4)).astype(np.float32)
    y = np.array([-100, *x[1:, :3].argmax(1)])
    report = train_on_board(tmp_path / "fw", Samples((x,), y), check=True)
    here = Job(program, kernels="exact")
    history = here.fit(x, y, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert len(report.run.losses) == here.step == 3
    assert float(report.run.losses @ [5, 5, 3]) / 13 == pytest.approx(history.epochs[0].loss, rel=1e-6)
    assert report.sections.ram_bytes == made.ram_bytes
    counts = report.to_json()["instructions_per_step"]
    assert len(counts) == 3
    assert 1.2 < counts[0] / counts[2] < 5 / 3


# -- memory protection -------------------------------------------------------------------------------------------------

BOARDS = {
    "stm32f746": 0x2000_0000, "netduinoplus2": 0x2000_0000, "mps2-an505": 0x3800_0000, "mps2-an385": 0x2000_0000,
    "mps2-an386": 0x2000_0000, "mps3-an547": 0x3000_0000,
}  # fmt: skip


@pytest.fixture(scope="module", params=BOARDS)
def poked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int, int, int]:
    """A firmware that touches what it is told to: elf, machine, start and end of RAM, start of flash. The board has far
    more RAM than the device, but for one."""
    need(*EMULATOR)
    device = load_device(request.param)
    if device.kind == "emulated" and device.name != "netduinoplus2":
        device = replace(device, ram_banks=(Bank("RAM", BOARDS[device.name], 40 * 1024),), flash_bytes=256 * 1024)
    folder = tmp_path_factory.mktemp("poke") / "fw"
    made = write_firmware(folder, small(), device)
    emulate.make(folder, f"MAIN={C / 'poke.c'}")
    size = device.ram_banks[0].bytes
    flash = 0 if made.boards[-1].startswith("mps2-an500") or made.boards[-1] == "mps2-an385" else device.flash_origin
    return folder / f"{made.boards[-1]}.elf", device.board, BOARDS[request.param], BOARDS[request.param] + size, flash


def poke(poked: tuple[Path, str, int, int, int], what: str, address: int, folder: Path) -> tuple[int, str]:
    (folder / "poke.bin").write_bytes(struct.pack("<2I", ord(what), address))
    return emulate.execute(poked[0], poked[1], folder, seconds=60)


def test_ram_can_be_used_to_its_last_byte_and_no_further(
    poked: tuple[Path, str, int, int, int], tmp_path: Path
) -> None:
    assert poke(poked, "w", poked[3] - 4, tmp_path) == (0, "still here\n")
    for what in "rw":
        status, said = poke(poked, what, poked[3], tmp_path)
        assert status == emulate.FAULT, said
        assert said.startswith("fault: CFSR 0x")
        assert said.endswith(f", address 0x{poked[3]:08x}\n")


def test_flash_can_be_read_and_not_written(poked: tuple[Path, str, int, int, int], tmp_path: Path) -> None:
    assert poke(poked, "r", poked[4] + 64, tmp_path)[0] == 0
    assert poke(poked, "w", poked[4] + 64, tmp_path)[0] == emulate.FAULT


def test_a_stack_that_is_too_deep_faults_and_overwrites_nothing(
    poked: tuple[Path, str, int, int, int], tmp_path: Path
) -> None:
    assert poke(poked, "s", 3, tmp_path)[0] == 0
    status, said = poke(poked, "s", 1000, tmp_path)
    assert status == emulate.FAULT, said


def test_ram_is_not_run(poked: tuple[Path, str, int, int, int], tmp_path: Path) -> None:
    assert poke(poked, "x", poked[2] + 1024, tmp_path)[0] == emulate.FAULT


# -- programs that come later, and several of them -------------------------------------------------------------------


def over_the_air(folder: Path, elf: Path, data: bytes) -> tuple[int, str]:
    (folder / "recipe.smg").write_bytes(data)
    (folder / "size.bin").write_bytes(struct.pack("<I", len(data)))
    return emulate.execute(elf, "mps2-an500", folder, seconds=60)


def test_a_program_is_loaded_at_run_time_and_a_missing_kernel_refused_by_name(tmp_path: Path) -> None:
    need(*EMULATOR)
    folder = tmp_path / "fw"
    write_firmware(folder, small(), load_device("stm32f746"))
    emulate.make(folder, f"MAIN={C / 'over_the_air.c'}")
    elf = folder / "mps2-an500.elf"
    assert over_the_air(tmp_path, elf, bare_bytes(small(classes=5))) == (0, "trained\n")
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    program = encode(api.build(other, torch.randn(2, 4), optimizer=SGD(0.1)))
    assert over_the_air(tmp_path, elf, bare_bytes(program)) == (1, "this runtime has no kernel 'tanh_f32'\n")
    damaged = bytearray(bare_bytes(small(classes=5)))
    damaged[200] ^= 1
    assert over_the_air(tmp_path, elf, bytes(damaged)) == (1, "the checksum does not match: the file is damaged\n")


def test_two_programs_live_in_one_firmware(tmp_path: Path) -> None:
    need(*EMULATOR)
    folder = tmp_path / "fw"
    one, other = small(), small(accumulate=True)
    write_firmware(folder, one, load_device("stm32f746"), "one")
    write_firmware(folder, other, load_device("stm32f746"), "other")
    emulate.make(folder, f"MAIN={C / 'two_programs.c'}")
    status, said = emulate.execute(folder / "mps2-an500.elf", "mps2-an500", tmp_path, seconds=60)
    assert (status, said) == (0, "the program has no entry point 'zero'\n")
    x, y = np.array([[1, 2, 3, 4], [-1, 0, 1, 2]], np.float32), np.array([1, 2], np.int32)
    first, second = Job(one, kernels="exact"), Job(other, kernels="exact")
    losses = []
    for _ in range(3):
        losses.append(first.train_step(x, y))
        machine = second.engine.machine
        loss = np.zeros((), np.float32)
        machine.run("zero", [], [], 1)
        machine.run("grad", [x[:1], y[:1]], [loss], 1, 2, 0)
        machine.run("grad", [x[1:], y[1:]], [loss], 1, 2, 1)
        machine.run("apply", [], [], 1)
    expected = (
        np.array(losses, np.float32).tobytes()
        + first.engine.machine.state.tobytes()
        + second.engine.machine.state.tobytes()
    )
    assert (tmp_path / "result.bin").read_bytes() == expected


def test_an_error_of_the_program_reaches_the_host(tmp_path: Path) -> None:
    need(*EMULATOR)
    write_firmware(tmp_path / "fw", small(), load_device("stm32f746"))
    emulate.make(tmp_path / "fw")
    bad = [([np.zeros((1, 4), np.float32), np.array([7], np.int32)], 1)]
    with pytest.raises(emulate.RunFailed, match="ended with status 1") as caught:
        emulate.run_on_board(tmp_path / "fw", small(), bad)
    assert "a label is not the number of a class" in caught.value.why


# -- the command line ------------------------------------------------------------------------------------------------

NETS = """\
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def test_from_a_model_to_training_on_the_board_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need(*EMULATOR)
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    np.savez("train.npz", x=x, y=x[:, :3].argmax(1))
    build = "build nets.py:build --input 2x4 --lr 0.1 --device nrf52840 --firmware fw --json"
    assert cli.main(build.split()) == 0
    made = json.loads(capsys.readouterr().out)
    assert list(made) == documented()["build with firmware"]
    emulate.make(Path("fw"))
    run = "run fw --data train.npz --epochs 3 --check --save out.smg --json"
    assert cli.main(run.split()) == 0
    ran = json.loads(capsys.readouterr().out)
    assert list(ran) == documented()["run"]
    assert ran["same_as_host"]
    assert ran["ram_bytes"] == ran["linked_ram_bytes"] == made["ram_bytes"]
    assert ran["steps"] == len(ran["losses"]) == len(ran["instructions_per_step"]) == 60
    assert np.mean(ran["losses"][-20:]) < np.mean(ran["losses"][:20])
    assert sum(k["instructions"] for k in ran["kernels"].values()) < ran["instructions"]
    train = "train fw/net.smg --data train.npz --epochs 3 --kernels exact --save host.smg"
    assert cli.main(train.split()) == 0
    assert Path("host.smg").read_bytes() == Path("out.smg").read_bytes(), "the order of samples is that of `train`"
