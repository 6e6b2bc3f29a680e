"""The command line: arguments in, text or JSON out, no logic."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Final, TextIO

from ..errors import CannotWrite, DoesNotFit, Internal, SmidgenError
from .arguments import Parser, parser

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of stdout: files have their own error
REPORT: Final = "this is a bug of smidgen: please report it with the lines above"


def main(argv: Sequence[str] | None = None) -> int:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller has closed it
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters shows question marks
    try:
        args = parser().parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SmidgenError as error:
        return _failed(error)
    except BrokenPipeError:  # the reader (head, less) has gone
        _silence(sys.stdout)
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except MemoryError:
        return _failed(DoesNotFit("this machine has too little memory for the command"))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            _silence(sys.stdout)
            return _failed(CannotWrite("cannot write to standard output", why=os.strerror(error.errno)))
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return _failed(Internal(f"{type(error).__name__}: {error}", help=REPORT))


def _failed(error: SmidgenError) -> int:
    try:
        print(error, file=sys.stderr, flush=True)
    except OSError:  # nobody can be told, but the status says it
        _silence(sys.stderr)
    return error.exit_status


def _silence(stream: TextIO) -> None:
    """So that the interpreter, which writes at its end what is left, ends in peace."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


__all__ = ["Parser", "main", "parser"]
