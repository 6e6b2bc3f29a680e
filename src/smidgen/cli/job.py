"""A job for the model and options of a command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from .. import files, terminal
from ..compiler.options import Classes, Memory, Replay, checked_budget, checked_device, checked_ladder
from ..compiler.precision import Int8
from ..devices.device import Device
from ..devices.room import with_slots
from ..errors import BadOption, BadScheme, MissingPart
from ..program.arguments import checked_seed


def source_files(args: argparse.Namespace) -> list[str]:
    """Files that the model, its loss and samples are read from."""
    whole = (".pt2", ".smg")
    files = [text if text.endswith(whole) else text.rpartition(":")[0] for text in (args.model, args.loss)]
    files = [file for file in files if file.endswith((".py", *whole))]
    return [*files, args.data] if args.data else files


def compiled(args: argparse.Namespace) -> Any:
    """A job for the model and options of a command line. What the user's code prints goes to stderr, beside progress:
    stdout is for the result."""
    with contextlib.redirect_stdout(sys.stderr):
        return _compiled(args)


def device_of(args: argparse.Namespace) -> Device | None:
    return with_slots(checked_device(args.device), args.slot_bytes)


def _compiled(args: argparse.Namespace) -> Any:
    given = described(args)
    from .. import api
    from ..compiler.fit.misfit import OverLimit

    with terminal.Progress(f"compiling {args.model}") as bar:
        bar.advance()
        try:
            return api.compile(**given)
        except OverLimit as error:
            raise error.in_command_line() from error


def described(args: argparse.Namespace) -> dict[str, Any]:
    """The model and options of a command line as arguments of `compile`."""
    checked_seed(args.seed)
    device, budget = device_of(args), checked_budget(args.budget)
    ladder = checked_ladder(args.ladder.split(",") if args.ladder else ())
    need_torch(args.command)
    import numpy as np

    from ..compiler.optimizers import by_name
    from .model_source import example_of, load_example, load_function, load_model

    rng = np.random.default_rng(args.seed)
    optimizer = by_name(args.optimizer, lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay,
                        clip_norm=args.clip_norm)  # fmt: skip
    loss: Any = load_function(args.loss) if ":" in args.loss else args.loss
    target = example_of(args.target, rng) if args.target else None
    model = load_model(args.model)
    example = tuple(example_of(text, rng) for text in args.input) if args.input else load_example(args.model)
    memory = Memory(
        budget,
        args.page_to,
        args.objective,
        args.deadline,
        args.effort,
        ladder,
        args.accumulate,
        args.const,
        args.prices,
        replay_of(args.replay, args.replay_in),
        whole_inputs=args.whole_inputs,
    )
    return {
        "model": model, "example": example, "loss": loss, "target": target, "optimizer": optimizer,
        "method": method_of(args.method), "batch": args.batch, "bn": args.bn, "seed": args.seed,
        "classes": Classes(args.spare_classes), "device": device, "memory": memory,
        "precision": precision_of(args.precision, args.calibrate, args.gradients),
        "data": samples_of(args.data),
        "kernels": args.kernels if args.threads == 1 else f"{args.kernels}:{args.threads}",
    }  # fmt: skip


def precision_of(text: str, calibrate: str | None, gradients: str | None) -> str | Int8:
    """What `--precision`, `--calibrate` and `--gradients` mean."""
    given = {name: said for name, said in (("calibrate", calibrate), ("gradients", gradients)) if said is not None}
    if not given:
        return text
    if text != "int8":
        name, said = next(iter(given.items()))
        raise BadOption(f"--{name} is for a network in int8", help=f"--precision int8 --{name} {said}")
    return Int8(**given)


def samples_of(path: str | None) -> Any:
    """Samples, or (samples, labels), as `compile` takes them."""
    if path is None:
        return None
    from ..train.npz import read_npz

    found = read_npz(path, needs_y=False)
    given = (*found.x, found.y) if found.y is not None else found.x
    return given[0] if len(given) == 1 else given


def need_torch(command: str) -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        help = "pip install 'smidgen[compile]'"
        raise MissingPart(f"{command} needs PyTorch", why=str(error), help=help) from error


def replay_of(text: str | None, where: str | None = None) -> Replay | None:
    """What `--replay` means: samples, and in any order what is kept, its precision, new samples of a step; and
    `--replay-in`: where they are."""
    if text is None:
        if where is not None:
            raise BadOption(
                "--replay-in says where samples are kept, but none are", help="--replay 200 --replay-in page"
            )
        return None
    first, *rest = text.split(":")
    given: dict[str, Any] = {}
    for part in rest:
        name = {"features": "of", "inputs": "of", "int8": "precision", "f32": "precision"}.get(part, "fresh")
        if name in given or (name == "fresh" and not part.isdecimal()):
            raise BadOption(f"--replay {text} is not understood", help="--replay 200, or --replay 200:inputs:f32:4")
        given[name] = int(part) if name == "fresh" else part
    if not first.isdecimal():
        raise BadOption(f"--replay {text} is not a number of samples", help="--replay 200")
    return Replay(int(first), **given, where=where or "ram")


KIND = "smidgen scheme"  # of a file


def method_of(text: str) -> str:
    """What `--method` means: a file that a search wrote stands for its scheme."""
    if not text.endswith(".json"):
        return text
    try:
        found: Any = json.loads(files.read(Path(text)))
    except (OSError, ValueError) as error:
        raise BadScheme(
            f"cannot read the scheme '{text}'", why=str(error), help="smidgen search … -o scheme.json"
        ) from None
    if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("scheme"), str):
        raise BadScheme(f"'{text}' is not a scheme", help="smidgen search … -o scheme.json writes one")
    return f"sparse_update:{found['scheme']}"
