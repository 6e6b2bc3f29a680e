"""Firmware: `build --firmware` and `run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import terminal
from ..errors import BadOption
from .output import check_outputs, print_json, wrote

if TYPE_CHECKING:
    from ..program.program import Program

MOST_BYTES: Final = 1 << 24


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("firmware", metavar="FOLDER", help="of `smidgen build --firmware`, after `make`")
    parser.add_argument("--on", default="qemu", choices=["qemu"], help="the board's emulator")
    parser.add_argument("--data", required=True, metavar="TRAIN.npz", help="arrays x (or x0, x1, …) and y")
    parser.add_argument("--eval", metavar="TEST.npz", help="what accuracy is measured on; default: the data trained on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--add-class", action="append", metavar="NAME", help="takes a spare class; repeat for more")
    parser.add_argument("--check", action="store_true", help="do the same here and compare every loss and the state")
    parser.add_argument("--save", metavar="OUT.smg", help="the program with what the board learned")


def add_firmware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--firmware", metavar="FOLDER", help="write a C project for the --device")
    parser.add_argument("--prefix", default="net", help="start of the program's names in C")
    parser.add_argument("--fleet", action="store_true", help="firmware that answers `smidgen gateway`")
    parser.add_argument("--fleet-rows", type=int, metavar="N", help="samples it holds at a time; default: one batch")
    parser.add_argument("--recipe-bytes", type=int, metavar="N", help="its RAM for a program that comes over the line")


def check_firmware(args: argparse.Namespace) -> None:
    """Before anything is compiled."""
    if not args.output and not args.firmware:
        raise BadOption("the following arguments are required: -o/--output", help="-o net.smg, or --firmware FOLDER")
    if args.firmware and not args.device:
        raise BadOption("--firmware needs --device", help="--device stm32f746, for instance (smidgen devices)")
    for name in ("fleet_rows", "recipe_bytes"):
        value, option = getattr(args, name), f"--{name.replace('_', '-')}"
        if value is not None and not (args.fleet and args.firmware):
            raise BadOption(
                f"{option} is of firmware for a gateway", help=f"--firmware FOLDER --fleet {option} {value}"
            )
        if value is not None and not 0 < value <= MOST_BYTES:
            raise BadOption(f"{option} {value} is not a number from 1 to {MOST_BYTES}", help=f"{option} 64")
    if args.fleet and not args.firmware:
        raise BadOption("--fleet is of firmware", help="--firmware FOLDER --device stm32f746 --fleet")


def firmware(args: argparse.Namespace, program: Program, device: Any) -> dict[str, Any]:
    """Write the project and say so; returns what JSON has of it."""
    from ..deploy.board_member import Member
    from ..deploy.firmware import write_firmware

    member = Member(args.fleet_rows or 0, args.recipe_bytes or 0) if args.fleet else None
    made = write_firmware(args.firmware, program, device, args.prefix, member)
    if not args.json:
        ram, flash = terminal.bytes_text(made.ram_bytes), terminal.bytes_text(made.flash_bytes)
        slots = " with two slots" if made.slot_bytes else ""
        print(f"{args.firmware}: {ram} of RAM on {made.device}, {flash} of flash{slots} besides the code")
        print(f"now: make -C {args.firmware}")
    return made.to_json()


def run(args: argparse.Namespace) -> int:
    from ..deploy.board_run import train_on_board
    from ..train.npz import read_npz

    for name in ("epochs", "steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise BadOption(f"--{name} {value} is not a number of {name}", help=f"--{name} 3")
    check_outputs(args.save)
    data = read_npz(args.data)
    held_out = read_npz(args.eval) if args.eval else None
    if not args.json and terminal.is_terminal(sys.stderr):
        print("running on the emulated board …", file=sys.stderr)
    report = train_on_board(
        Path(args.firmware), data, held_out=held_out, epochs=args.epochs, steps=args.steps, check=args.check,
        save=args.save, add_classes=args.add_class or (),
    )  # fmt: skip
    if args.json:
        print_json(report.to_json())
    else:
        print(report.to_text())
        wrote(args.save)
    return 0
