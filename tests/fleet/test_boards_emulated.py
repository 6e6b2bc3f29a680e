"""A gateway and two emulated boards, a Cortex-M7 and a Cortex-M4: a round with this machine's bits, although a board
loses its power in the middle and frames are damaged. Needs QEMU and the ARM compiler."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn

import smidgen
from smidgen import cli, fleet
from smidgen.deploy.board_member import Member
from smidgen.deploy.emulate import sections
from smidgen.errors import BadOption
from smidgen.fleet.board import Board
from smidgen.fleet.boards import BoardClient
from smidgen.fleet.line import TcpLine
from smidgen.program.program import Program
from tests.support.boards import EMULATOR, need
from tests.support.qemu_boards import QemuBoard
from tests.support.transcripts import documented

DEVICES = ("mps2-an500", "mps2-an386")
SAMPLES = 21


class Spoiled(TcpLine):
    """Damages every seventh frame to the board, and cuts its power at the 30th."""

    def __init__(self, board: QemuBoard) -> None:
        super().__init__("127.0.0.1", board.port)
        self._board, self._count = board, 0
        self.cut_at = 30

    def send(self, data: bytes) -> None:
        self._count += 1
        if self._count == self.cut_at:
            self._board.reset()
        if self._count % 7 == 3:
            data = data[:-9] + bytes([data[-9] ^ 16]) + data[-8:]
        super().send(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(*EMULATOR)
    made = tmp_path_factory.mktemp("boards")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 3)
    )
    smidgen.compile(
        model, torch.randn(4, 1, 4, 4), optimizer=smidgen.SGD(0.1, momentum=0.9), kernels="exact"
    ).save(made / "net.smg")  # fmt: skip
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * SAMPLES, 1, 4, 4)).astype(np.float32)
    np.savez(made / "d.npz", x=x, y=x[:, 0, 0, :3].argmax(1), board=np.repeat([0, 1], SAMPLES))
    return made


@pytest.fixture(scope="module")
def boards(folder: Path) -> Iterator[list[QemuBoard]]:
    program = Program.open(folder / "net.smg")
    found = [QemuBoard(folder / name, program, name, Member(rows=9)) for name in DEVICES]
    try:
        for board in found:
            assert sections(board.elf).ram_bytes == board.made.ram_bytes, "RAM is what is said"
            board.start()
        yield found
    finally:
        for board in found:
            board.cut()


def clients(folder: Path, boards: list[QemuBoard] | None) -> list[fleet.Client]:
    found: list[fleet.Client] = []
    for i in range(2):
        own = fleet.share(folder / "d.npz", "board", part=i, of=2)
        given = {"eval": own.eval, "part": i, "name": DEVICES[i]}
        if boards is None:
            found.append(fleet.Client(folder / "net.smg", own.x, own.y, kernels="exact", **given))  # type: ignore[arg-type]
        else:
            board = Board(boards[i].address, line=Spoiled(boards[i]), attempts=40, seconds=1.0)
            found.append(BoardClient(folder / "net.smg", own.x, own.y, board=board, **given))  # type: ignore[arg-type]
    return found


def learned(folder: Path, own: list[fleet.Client], save: str) -> dict[str, np.ndarray]:
    grid = fleet.LocalGrid(fleet.client_app(lambda context: own[int(context.node_config["partition-id"])]), 2)
    _, checked = fleet.federate(
        grid, FedAvg(), folder / "net.smg", rounds=2, epochs=2, seed=7, lr=0.05, save=folder / save
    )
    assert checked.refused == []
    return smidgen.load(folder / save).state_dict()


def test_two_boards_learn_the_bits_of_this_machine_through_damage_and_a_power_cut(
    folder: Path, boards: list[QemuBoard]
) -> None:
    on_boards = clients(folder, boards)
    there, here = learned(folder, on_boards, "there.smg"), learned(folder, clients(folder, None), "here.smg")
    assert all(there[name].tobytes() == here[name].tobytes() for name in here)
    for client, board in zip(on_boards, boards, strict=True):
        assert isinstance(client, BoardClient)
        assert board.starts == 2
        assert client.board.resent > 0
        assert client.board.hash() == zlib.crc32(client.board.state())
        client.board.close()


def test_a_gateway_is_the_mean_of_its_boards(folder: Path, boards: list[QemuBoard]) -> None:
    """One client of the strategy; samples weigh as in FedAvg."""
    addresses = ",".join(board.address for board in boards)
    own = fleet.gateway(folder / "net.smg", folder / "d.npz", addresses, by="board")
    assert isinstance(own, fleet.Gateway)
    values = fleet.Terms.of(own.open()).values_of(own.open())
    reply = own.train(values, epochs=1, seed=3)
    each = [client.train(values, epochs=1, seed=3) for client in clients(folder, None)]
    n = [one.counters["num-examples"] for one in each]
    for name in values:
        mean = sum(one.values[name].astype(np.float64) * k for one, k in zip(each, n, strict=True)) / sum(n)
        assert np.allclose(reply.values[name], mean, rtol=1e-6, atol=1e-7)
    assert reply.counters["num-examples"] == sum(n)
    for client in own.clients:
        client.board.close()


def test_the_command_greets_the_boards(
    folder: Path, boards: list[QemuBoard], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gateway", "--program", str(folder / "net.smg"), "--boards"]
    assert cli.main([*words, ",".join(board.address for board in boards)]) == 0
    said = capsys.readouterr().out
    assert said.count(", 9 samples of 68 bytes at hand, saves to slots\n") == 2
    assert cli.main([*words, f"{boards[0].address},tcp:127.0.0.1:1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found) == documented()["gateway"]
    assert [row["answers"] for row in found["boards"]] == [True, False]
    assert found["boards"][1]["error"].startswith("error[E606]: ")


def test_what_a_gateway_cannot_speak_for_is_no_firmware(folder: Path) -> None:
    from smidgen.deploy.firmware import write_firmware
    from smidgen.devices.device import load_device

    torch.manual_seed(0)
    job = smidgen.compile(
        nn.Linear(4, 2), torch.randn(4, 4), memory=smidgen.Memory(replay=smidgen.Replay(samples=4))
    )  # fmt: skip
    with pytest.raises(BadOption, match="a program that replays"):
        write_firmware(folder / "no", job.program, load_device("mps2-an500"), member=Member())
