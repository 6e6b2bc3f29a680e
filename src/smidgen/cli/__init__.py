"""The command line: arguments in, text or JSON out, no logic."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence

from ..errors import SmidgenError
from .arguments import Parser, parser


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters shows question marks
    try:
        args = parser().parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SmidgenError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


__all__ = ["Parser", "main", "parser"]
