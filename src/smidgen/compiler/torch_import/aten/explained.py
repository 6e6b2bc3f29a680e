"""What cannot be translated, as the user's error: the op, module and line, why, and what to do instead."""

from __future__ import annotations

import difflib

import torch
from torch import fx

from ....errors import ExportFailed, SmidgenError, UnsupportedOp
from .live import name_of
from .source import class_of, library_of, line_of_node
from .writer import TABLE, Unsupported

INSTEAD = {
    "median": "x.median(dim)[0], along an axis",
    **dict.fromkeys(
        ("floor", "round", "ceil", "trunc", "floor_divide", "remainder"),
        "compute sizes in Python; to learn in integers, leave rounding out and say precision='int8'",
    ),
    **dict.fromkeys(("randn", "rand", "randn_like", "rand_like", "normal"), "F.dropout is the randomness that works"),
    **dict.fromkeys(("nonzero", "masked_select", "cond"), "torch.where(condition, a, b)"),
    **dict.fromkeys(
        ("fft_rfft", "fft_fft", "fft_rfft2", "fft_fft2", "stft"), "a product with a matrix of cosines and sines"
    ),
    "cumprod": "exp of a cumsum of logs",
    "grid_sampler": "F.interpolate",
    "col2im": "F.conv_transpose2d with a kernel of ones; F.pixel_shuffle where the blocks do not overlap",
}
COMPOSE = "compose it of simpler operations"


class Inside(Unsupported):
    """A step of torch's own definition of an op failed; advice about that step would not be about the user's code."""


def explained(error: Exception, node: fx.Node, src: str) -> SmidgenError:
    line = line_of_node(node)
    at = f"{src} ({line})" if src and line else src or line or class_of(node)
    name = name_of(node)
    label = f"aten.{name}" if hasattr(torch.ops.aten, name) else name
    if isinstance(error, Unsupported):
        close = [] if name in TABLE else difflib.get_close_matches(name, TABLE, n=1, cutoff=0.8)
        help = error.help or INSTEAD.get(name) or (close[0] if close else COMPOSE)
        return _of_library(
            UnsupportedOp(f"torch op {label} is not supported", at=at, why=error.why, help=help), node, src
        )
    if isinstance(error, ArithmeticError):
        failed = ExportFailed(
            f"{label} makes a size that is not a multiple of the batch size", at=at, why=str(error),
            help="keep the batch as one axis of its own; samples must not be combined with each other",
        )  # fmt: skip
        return _of_library(failed, node, src)
    if isinstance(error, SmidgenError):
        error.at = error.at or at
        return _of_library(error, node, src)
    why = f"translating it failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    help = INSTEAD.get(name, COMPOSE)
    return _of_library(UnsupportedOp(f"torch op {label} is not supported", at=at, why=why[:200], help=help), node, src)


def _of_library(error: SmidgenError, node: fx.Node, src: str) -> SmidgenError:
    """Advice for a line that is not the user's to change: how to put a module of one's own in its place."""
    package, kind = library_of(error.at), class_of(node)
    if package and kind:
        place = f"model.set_submodule('{src}', yours)" if src and src != "loss" else "train yours instead"
        error.help += f"; the line is in {package}: subclass {kind} with it changed, then {place}"
    return error
