"""`plan --sweep`, `plan --max-batch` and `plan --methods`: many plans, one table."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from .. import terminal
from ..errors import BadOption
from .job import described, source_files
from .output import check_outputs, print_json, wrote

PATIENCE_S = 2.0  # without a word
REFUSED = {"sweep": ("accumulate", "deadline"), "max_batch": ("accumulate", "html", "batch"), "methods": ("html",)}
"""What is asked for → options that it does not go with."""


def check(args: argparse.Namespace) -> None:
    """Before anything is imported."""
    asked = [which for which in REFUSED if getattr(args, which)]
    if len(asked) > 1:
        raise BadOption(f"{' and '.join(map(_typed, asked))} exclude each other", help="give one of them")
    for name in ("ladder", "all_layers", *REFUSED[asked[0]]):
        if getattr(args, name):
            raise BadOption(f"{_typed(asked[0])} does not go with {_typed(name)}", help="leave one of them out")
    if args.max_batch and not (args.budget or args.device):
        raise BadOption("--max-batch needs a limit", help="--budget 64MB, or --device stm32h743")


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def plan(args: argparse.Namespace) -> int:
    from ..compiler.fit.misfit import OverLimit
    from ..report import methods_text, sweep_html, sweep_text

    check(args)
    check_outputs(args.html, inputs=source_files(args))
    with contextlib.redirect_stdout(sys.stderr), Bar(args.model) as bar:
        try:
            found = _asked(args, bar)
        except OverLimit as error:
            raise error.in_command_line() from error
    look: dict[str, Any] = {"title": args.model, "colour": terminal.has_colour(sys.stdout), "width": terminal.width()}
    if args.methods:
        if args.json:
            print_json({"model": args.model, **methods_text.methods_json(found)})
        else:
            print(methods_text.methods_text(found, **look))
        return 0
    if args.max_batch:
        if args.json:
            print_json({"model": args.model, **sweep_text.largest_json(found)})
        else:
            print(sweep_text.largest_text(found, **look))
        return 0
    if args.html:
        sweep_html.write(found, args.html, title=args.model)
    if args.json:
        print_json({"model": args.model, **sweep_text.sweep_json(found)})
    else:
        print(sweep_text.sweep_text(found, **look))
        wrote(args.html)
    return 0


def _asked(args: argparse.Namespace, bar: Bar) -> Any:
    from .. import api

    with api.prepared(**described(args)) as task:
        if args.methods:
            return api.compared(task, bar.told)
        return api.largest(task, bar.told) if args.max_batch else api.swept(task, bar.told)


class Bar:
    """Says what is at hand when it takes longer than a moment; nothing if nobody looks."""

    def __init__(self, what: str, doing: str = "planning") -> None:
        self._bar = terminal.Progress(f"{doing} {what}")
        self._start = time.monotonic()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.clear()

    def told(self, done: int, total: int, what: str) -> None:
        self._bar.done, self._bar.total = done, total or None
        if time.monotonic() - self._start > PATIENCE_S:
            self._bar.advance(0, what)
