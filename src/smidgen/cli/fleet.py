"""`smidgen fleet`: an app for devices that learn together."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from .. import terminal
from .output import print_json

HELP: Final = "devices that learn one model together, on Flower"


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """`command` makes one of `fleet`'s own."""
    what = "a Flower app of a program and a file of samples: each id in it is a simulated device"
    make = command("new", new, what)
    make.add_argument("app", metavar="APP", help="a folder that does not exist yet")
    make.add_argument("--program", required=True, metavar="NET.smg")
    make.add_argument("--data", required=True, metavar="D.npz", help="arrays x (or x0, x1, …), y and an id a sample")
    make.add_argument("--by", required=True, metavar="NAME", help="the array of ids: speaker, for instance")


def new(args: argparse.Namespace) -> int:
    from ..fleet.app import new_app

    made = new_app(args.app, args.program, args.data, args.by)
    if args.json:
        print_json(made.to_json())
        return 0
    least, most = min(made.samples), max(made.samples)
    print(f"{args.app}: {made.devices} devices by {args.by}, {least} to {most} samples each; "
          f"{terminal.bytes_text(made.sent_bytes)} each way a round")  # fmt: skip
    print(made.command)
    return 0
