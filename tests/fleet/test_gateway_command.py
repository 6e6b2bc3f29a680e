"""`smidgen gateway`: what it starts, and what it refuses before anything is started."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import cli, fleet
from smidgen.errors import BadOption
from smidgen.fleet.line import SerialLine, TcpLine, line_to
from smidgen.fleet.supernodes import commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gateway")
    smidgen.compile(nn.Linear(4, 2), torch.randn(4, 4)).save(made / "net.smg")
    x = np.zeros((12, 4), np.float32)
    np.savez(made / "d.npz", x=x, y=np.zeros(12, int), owner=np.repeat(["a", "b", "c", "d"], 3))
    return made


def configuration(command: list[str]) -> dict[str, str]:
    """As Flower reads it: pairs of a key and a value of TOML, with spaces between them."""
    said = command[command.index("--node-config") + 1]
    return dict(pair.split("=", 1) for pair in shlex.split(said))


@pytest.mark.parametrize("together", [False, True])
def test_a_supernode_for_each_board_or_one_for_all(folder: Path, together: bool) -> None:
    boards = ["/dev/ttyACM0", "tcp:127.0.0.1:5555"]
    made = commands(
        boards, str(folder / "net.smg"), str(folder / "d.npz"), "owner", "server:8000", together=together, name="hall",
        flags=["--insecure"],
    )  # fmt: skip
    found = [configuration(command) for command in made]
    assert [one["boards"] for one in found] == ([",".join(boards)] if together else boards)
    assert [one["name"] for one in found] == (["hall"] if together else ["hall 0", "hall 1"])
    assert [(one["partition-id"], one["num-partitions"]) for one in found] == (
        [("0", "1")] if together else [("0", "2"), ("1", "2")]
    )
    ports = {command[command.index("--port") + 1] for command in made}
    assert len(ports) == len(made), "each has a port of its own"
    assert all(command[1:3] == ["--superlink", "server:8000"] and "--insecure" in command for command in made)


def test_boards_share_the_samples_alike_together_and_apart(folder: Path) -> None:
    boards = ["/dev/ttyACM0", "/dev/ttyACM1"]
    all_of_them = fleet.gateway(folder / "net.smg", folder / "d.npz", boards, by="owner", held_out=0.0)
    assert isinstance(all_of_them, fleet.Gateway)
    apart = [
        fleet.gateway(folder / "net.smg", folder / "d.npz", board, by="owner", part=i, of=2, held_out=0.0)
        for i, board in enumerate(boards)
    ]
    for one, other in zip(all_of_them.clients, apart, strict=True):
        assert isinstance(other, fleet.BoardClient)
        assert (one.part, one.board.address, len(one.y)) == (other.part, other.board.address, len(other.y))
    assert sum(len(one.y) for one in apart) == 12


@pytest.mark.parametrize(("words", "says"), [
    ("--boards ,", "are not boards"), ("--boards tcp:a:1,tcp:a:1", "are not boards"),
    ("--boards ttyACM0", "is no address of a board"), ("--boards tcp:a:99999", "is no address of a board"),
    ("--boards /dev/ttyACM0@12345", "12345 is no speed"),
    ("--boards tcp:a:1 --superlink s:1", "need samples"),
    ("--boards tcp:a:1 --superlink s:1 --data d.npz", "either --insecure or --root-certificates"),
    ("--boards tcp:a:1 --superlink s:1 --data d.npz --insecure --root-certificates ca.pem", "either --insecure"),
    ("--boards tcp:a:1 --superlink s:1 --data no.npz --insecure", "--data 'no.npz' is no file"),
])  # fmt: skip
def test_what_cannot_be_is_said_first(
    words: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["gateway", "--program", "net.smg", *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error[E304]: ")
    assert says in said


def test_quotation_marks_would_end_what_flower_reads(folder: Path) -> None:
    with pytest.raises(BadOption, match="no quotation marks"):
        commands(["tcp:a:1"], str(folder / "net.smg"), str(folder / "d.npz"), 'a"b', "s:1")


def test_an_address_is_a_port_or_a_tcp_address() -> None:
    assert isinstance(line_to("tcp:[::1]:5555"), TcpLine)
    assert isinstance(line_to("/dev/ttyUSB0@921600"), SerialLine)
