"""`plan --sweep` and `plan --max-batch`."""

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


def check(args: argparse.Namespace) -> None:
    """Before anything is imported."""
    if args.sweep and args.max_batch:
        raise BadOption("--sweep and --max-batch exclude each other", help="give one of them")
    which = "--sweep" if args.sweep else "--max-batch"
    for name in ("ladder", "accumulate", "all_layers", *(("deadline",) if args.sweep else ("html", "batch"))):
        if getattr(args, name):
            raise BadOption(f"{which} does not go with --{name.replace('_', '-')}", help="leave one of them out")
    if args.max_batch and not (args.budget or args.device):
        raise BadOption("--max-batch needs a limit", help="--budget 64MB, or --device stm32h743")


def plan(args: argparse.Namespace) -> int:
    from ..compiler.fit.misfit import OverLimit
    from ..report import sweep_html, sweep_text

    check(args)
    check_outputs(args.html, inputs=source_files(args))
    with contextlib.redirect_stdout(sys.stderr), _Bar(args.model) as bar:
        try:
            found = _asked(args, bar)
        except OverLimit as error:
            raise error.in_command_line() from error
    look: dict[str, Any] = {"title": args.model, "colour": terminal.has_colour(sys.stdout), "width": terminal.width()}
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


def _asked(args: argparse.Namespace, bar: _Bar) -> Any:
    from .. import api

    with api.prepared(**described(args)) as task:
        return api.largest(task, bar.told) if args.max_batch else api.swept(task, bar.told)


class _Bar:
    """Says what is at hand when it takes longer than a moment; nothing if nobody looks."""

    def __init__(self, what: str) -> None:
        self._bar = terminal.Progress(f"planning {what}")
        self._start = time.monotonic()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.clear()

    def told(self, done: int, total: int, what: str) -> None:
        self._bar.done, self._bar.total = done, total or None
        if time.monotonic() - self._start > PATIENCE_S:
            self._bar.advance(0, what)
