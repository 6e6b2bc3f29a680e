"""`smidgen build --target`: a binary for another machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadOption

if TYPE_CHECKING:
    from ..program.program import Program


class Target(argparse.Action):
    """`--target` is the shape of a loss function's target, which begins with a number, or a machine."""

    def __init__(self, option_strings: Sequence[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, **rest)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, "target" if values[:1].isdigit() else "machine", values)


def check(args: argparse.Namespace) -> None:
    """Before any work."""
    if args.machine is None:
        return
    from ..deploy.linux_binary import checked_target, zig

    checked_target(args.machine)
    zig()
    if not args.output:
        raise BadOption("--target needs a file for the binary", help="-o runner")


def build(args: argparse.Namespace, program: Program) -> dict[str, Any]:
    from ..deploy.linux_binary import build_binary

    build_binary(program, args.machine, args.output)
    return {"target": args.machine}
