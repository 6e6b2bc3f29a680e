"""`smidgen gateway`: speaks for boards in a fleet."""

from __future__ import annotations

import argparse
from typing import Any, Final

from .. import terminal
from ..errors import BadOption, SmidgenError
from .output import print_json

ADDRESSES: Final = "/dev/ttyACM0, /dev/ttyUSB0@921600 or tcp:127.0.0.1:5555, with commas between them"
HELP: Final = "speaks for microcontrollers in a fleet: each is a client of Flower"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--boards", required=True, metavar="ADDRESS,…", help=ADDRESSES)
    parser.add_argument("--program", required=True, metavar="NET.smg", help="what the boards' firmware was made of")
    parser.add_argument("--superlink", metavar="HOST:PORT", help="joins its fleet; default: only greets the boards")
    parser.add_argument("--data", metavar="MINE.npz", help="the boards' samples: arrays x (or x0, x1, …) and y")
    parser.add_argument("--by", default="", metavar="NAME", help="an array of ids, which the boards share; "
                        "default: each board has all samples")  # fmt: skip
    parser.add_argument("--name", default="", help="as errors and the server's record say it")
    together = "one SuperNode, and the server gets the mean of the boards; default: each board is a client of its own"
    parser.add_argument("--together", action="store_true", help=together)
    parser.add_argument("--insecure", action="store_true", help="without TLS: for a network of your own")
    parser.add_argument("--root-certificates", metavar="CA.pem", help="with TLS: who signed the server's certificate")
    parser.add_argument("--auth-supernode-private-key", metavar="FILE", help="with authentication, as Flower says")


def gateway(args: argparse.Namespace) -> int:
    from ..fleet import supernodes

    boards = [text.strip() for text in args.boards.split(",") if text.strip()]
    if not boards or len(set(boards)) < len(boards):
        raise BadOption(
            f"--boards {args.boards!r} are not boards, each once", help="--boards /dev/ttyACM0,/dev/ttyACM1"
        )
    if args.superlink is None:
        return greet(boards, args.program, args.json)
    if args.data is None:
        raise BadOption("boards of a fleet need samples", help="--data mine.npz")
    if args.json:
        raise BadOption("--json is of greetings", help="leave out --superlink, or --json")
    if args.insecure == bool(args.root_certificates):
        raise BadOption("either --insecure or --root-certificates", help="--root-certificates ca.pem")
    flags = ["--insecure"] if args.insecure else ["--root-certificates", args.root_certificates]
    if args.auth_supernode_private_key:
        flags += ["--auth-supernode-private-key", args.auth_supernode_private_key]
    return supernodes.run(supernodes.commands(
        boards, args.program, args.data, args.by, args.superlink, together=args.together, name=args.name, flags=flags,
    ))  # fmt: skip


def greet(boards: list[str], program: str, as_json: bool) -> int:
    """Does each board answer, and does it run the program?"""
    from ..fleet.board import Board
    from ..fleet.boards import check_board_program, greeted
    from ..fleet.client import opened

    job = opened(program, kernels="exact")
    check_board_program(job)
    rows: list[dict[str, Any]] = []
    for address in boards:
        row: dict[str, Any] = {"board": address}
        board = Board(address, attempts=5, seconds=1.0)
        try:
            facts = greeted(board, job)
        except SmidgenError as error:
            row |= {"answers": False, "error": str(error)}
        else:
            row |= {
                "answers": True, "state_bytes": facts.state_bytes, "rows": facts.rows, "row_bytes": facts.row_bytes,
                "batch": facts.batch, "slots": facts.has_slots, "restored": facts.is_restored,
                "recipe_bytes": facts.recipe_bytes,
            }  # fmt: skip
        finally:
            board.close()
        rows.append(row)
    if as_json:
        print_json({"program": program, "boards": rows})
    else:
        for row in rows:
            print(f"{row['board']}: {_said(program, row)}" if row["answers"] else row["error"])
    return 0 if all(row["answers"] for row in rows) else 1


def _said(program: str, row: dict[str, Any]) -> str:
    slots = "saves to slots" if row["slots"] else "has no slots"
    room = f", room for another program of {terminal.bytes_text(row['recipe_bytes'])}" if row["recipe_bytes"] else ""
    return (f"runs {program}, {terminal.bytes_text(row['state_bytes'])} of state, {row['rows']} samples of "
            f"{row['row_bytes']} bytes at hand, {slots}{room}")  # fmt: skip


__all__ = ["HELP", "add", "gateway"]
