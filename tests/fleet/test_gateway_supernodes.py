"""`smidgen gateway` in a fleet over a network: a SuperLink, a SuperNode for each of two emulated boards, and Flower's
own command. Needs QEMU and the ARM compiler."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn

import smidgen
from smidgen import fleet
from smidgen.fleet.app import new_app
from smidgen.program.program import Program
from tests.support import flower
from tests.support.boards import EMULATOR, need
from tests.support.qemu_boards import QemuBoard, free_port

BIN = Path(sys.executable).parent
SECONDS = 300


@pytest.mark.slow
def test_boards_are_clients_of_a_superlink_and_learn_the_bits_of_this_machine(tmp_path: Path) -> None:
    need(*EMULATOR)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    program, data = tmp_path / "net.smg", tmp_path / "d.npz"
    smidgen.compile(model, torch.randn(8, 6), optimizer=smidgen.SGD(0.1, momentum=0.9), kernels="exact").save(program)
    x = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    np.savez(data, x=x, y=x[:, :3].argmax(1), board=np.repeat([0, 1], 20))
    new_app(str(tmp_path / "app"), str(program), str(data), "board")
    boards = [QemuBoard(tmp_path / name, Program.open(program), name) for name in ("mps2-an500", "mps2-an386")]
    with contextlib.ExitStack() as started:
        for board in boards:
            started.callback(board.cut)
            board.start()
        env, link = started.enter_context(flower.home()), f"127.0.0.1:{free_port()}"
        (Path(env["FLWR_HOME"]) / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{link}"\ninsecure = true\n'
        )
        host, port = link.split(":")
        said = begun(started, [str(BIN / "flower-superlink"), "--insecure", "--host", host, "--port", port], env)
        listens(int(port), said)
        addresses = ",".join(board.address for board in boards)
        words = ["gateway", "--boards", addresses, "--program", str(program), "--data", str(data), "--by", "board"]
        begun(started, [sys.executable, "-m", "smidgen.cli", *words, "--superlink", link, "--insecure"], env)
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(tmp_path / "app"), "here", "--stream", "--run-config", "rounds=2 epochs=2"],
            env=env, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    learned = smidgen.load(tmp_path / "app" / "learned.smg").state_dict()

    def here(context: object) -> fleet.Client:
        part = context.node_config["partition-id"]  # type: ignore[attr-defined]
        own = fleet.share(data, "board", part=part, of=2)
        return fleet.Client(program, own.x, own.y, eval=own.eval, part=part, kernels="exact")

    fleet.federate(
        fleet.LocalGrid(fleet.client_app(here), 2), FedAvg(), program, rounds=2, epochs=2, save=tmp_path / "same.smg"
    )
    same = smidgen.load(tmp_path / "same.smg").state_dict()
    assert all(learned[name].tobytes() == same[name].tobytes() for name in same)
    start = smidgen.load(program).state_dict()
    assert not all(np.array_equal(learned[name], start[name]) for name in start)


def begun(started: contextlib.ExitStack, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Ended at the end."""
    process = subprocess.Popen(command, env=dict(env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.terminate()
        process.wait(60)

    started.callback(end)
    return process


def listens(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, "it ended"
        time.sleep(0.1)
    raise AssertionError("nobody listens")
