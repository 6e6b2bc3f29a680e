"""`smidgen search`: which parts of a network are worth learning within a budget."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from .. import files, terminal
from ..errors import BadOption
from .job import KIND, described, source_files
from .output import check_outputs, print_json, wrote
from .sweep import Bar


def search(args: argparse.Namespace) -> int:
    from .. import api
    from ..compiler.fit.misfit import OverLimit
    from ..report import scheme_html, scheme_text
    from ..train.npz import read_npz

    if args.budget is None and args.device is None:
        raise BadOption("search needs a limit", help="--budget 256KB, or --device stm32f746")
    check_outputs(args.output, args.html, inputs=source_files(args))
    data = read_npz(args.data)
    if len(data.x) != 1:
        raise BadOption(f"'{args.data}' has {len(data.x)} inputs", why="a search takes networks with one")
    args.method = "last_layer"
    with contextlib.redirect_stdout(sys.stderr), Bar(args.model, "searching") as bar:
        try:
            with api.prepared(**described(args)) as task:
                found = api.searched(task.lowering, task.options, task.limit, (data.x[0], data.y), bar.told)
        except OverLimit as error:
            raise error.in_command_line() from error
    if args.output:
        files.write(args.output, (json.dumps({"kind": KIND, **found.to_json()}, indent=1) + "\n").encode())
    if args.html:
        scheme_html.write(found, args.html, title=args.model)
    if args.json:
        print_json({"model": args.model, **scheme_text.scheme_json(found)})
    else:
        print(scheme_text.scheme_text(found, title=args.model, colour=terminal.has_colour(sys.stdout)))
        wrote(args.output)
        wrote(args.html)
    return 0


__all__ = ["search"]
