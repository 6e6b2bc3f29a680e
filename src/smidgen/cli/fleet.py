"""`smidgen fleet`: an app for devices that learn together."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .. import terminal
from ..errors import BadOption, CannotWrite
from ..files import HELP as HELP_FILES
from .output import print_json

if TYPE_CHECKING:
    from ..train.job import Job

HELP: Final = "devices that learn one model together, on Flower"


def add(command: Callable[..., argparse.ArgumentParser], add_model: Callable[..., None]) -> None:
    """`command` makes one of `fleet`'s own."""
    what = "a Flower app of a program and a file of samples: each id in it is a simulated device"
    make = command("new", new, what)
    make.add_argument("app", metavar="APP", help="a folder that does not exist yet")
    make.add_argument("--program", required=True, metavar="NET.smg")
    make.add_argument("--data", required=True, metavar="D.npz", help="arrays x (or x0, x1, …), y and an id a sample")
    make.add_argument("--by", required=True, metavar="NAME", help="the array of ids: speaker, for instance")

    what = "what each device can train of your model: method, technique, RAM, seconds, bytes on the wire"
    listed = command("plan", plan, what)
    add_model(listed)
    names = "of `smidgen devices`, pi1, pi4, pizero2, a .toml file, or a number of bytes: pi4,stm32h743,64KB"
    listed.add_argument("--devices", required=True, metavar="NAME,…", help=names)
    listed.add_argument("-o", "--output", metavar="FOLDER", help="write a program for each device")


def plan(args: argparse.Namespace) -> int:
    from ..fleet.plan import advice, names_of, planned, text_of
    from .job import described

    names = names_of(args.devices)
    if args.device:
        raise BadOption("a fleet has several devices", help=f"--devices {args.device}")
    given = {name: value for name, value in described(args).items() if name != "device"}
    rows = []
    with contextlib.redirect_stdout(sys.stderr), terminal.Progress(f"planning {args.model}") as bar:
        bar.total = len(names)
        for name in names:
            bar.advance(0, name)
            row, job = planned(name, given)
            rows.append(row)
            bar.advance()
            if args.output and job is not None:
                save(job, args.output, name)
    if args.json:
        print_json({"model": args.model, "devices": [row.to_json() for row in rows], "advice": advice(rows)})
    else:
        print(text_of(rows))
    return 0 if all(not row.why for row in rows) else 1


def save(job: Job, folder: str, device: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot make '{folder}'", why=error.strerror or str(error), help=HELP_FILES) from error
    job.save(os.path.join(folder, f"{Path(device).stem if device.endswith('.toml') else device}.smg"))


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
