"""Where something is in the user's own code: module paths and source lines, for messages."""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
import traceback
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx

OURS = str(Path(__file__).parents[3])
TORCH = str(Path(torch.__file__).parent)
PYTHON = sysconfig.get_paths()["stdlib"]
INSTALLED = re.compile(r"(?:site|dist)-packages/([^/:]+)")
FRAME = re.compile(r'File "(.+?)", line (\d+), in [^\n]*(?:\n(?! *File ")([^\n]*))?')


def is_users(path: str) -> bool:
    """Not torch's, Python's or ours."""
    builtin = path.startswith(PYTHON) and "site-packages" not in path
    return os.path.exists(path) and not builtin and not path.startswith((OURS, TORCH))


def library_of(at: str) -> str:
    """The installed package that a place is in, as users import it; empty for their own files."""
    found = INSTALLED.search(at)
    return found[1].removesuffix(".py") if found else ""


def place(path: str, line: int, code: str) -> str:
    """`net.py:12: return self.fc(x)`"""
    inside = os.path.relpath(path)
    shown = path if inside.startswith("..") else inside
    return f"{shown}:{line}: {code.strip()}" if code.strip() else f"{shown}:{line}"


def last_of(frames: Iterable[tuple[str, int, str]]) -> str:
    """The innermost frame in the user's own files."""
    mine = [frame for frame in frames if is_users(frame[0])]
    return place(*mine[-1]) if mine else ""


def line_of_error(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [(f.filename, f.lineno or 0, f.line or "") for f in frames]
    # Frames before the first one of torch belong to whoever called smidgen.
    first = next((i for i, frame in enumerate(inside) if frame[0].startswith(TORCH)), len(inside))
    return last_of(inside[first:])


def line_of_frame(frame: types.FrameType | None) -> str:
    """The user's line that is being run, seen from a frame of ours that torch called."""
    frame = frame.f_back if frame else None
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    if frame is None or not is_users(frame.f_code.co_filename):
        return ""
    context = inspect.getframeinfo(frame).code_context or [""]
    return place(frame.f_code.co_filename, frame.f_lineno, context[0])


def line_of_node(node: fx.Node) -> str:
    """Torch notes no line for blocks of its own such as autocast, but for what takes their results."""
    traces = [near.meta.get("stack_trace") or "" for near in (node, *node.users)]
    lines = (last_of((p, int(line), code) for p, line, code in FRAME.findall(trace)) for trace in traces)
    return next((line for line in lines if line), "")


@contextmanager
def every_frame_noted() -> Iterator[None]:
    """torch.export notes only the lines in functions named `forward`; here also those in helpers and losses."""
    real = fx.proxy.TracerBase._filter_traceback_frames

    def keeping(tracer: Any, frames: Any) -> Any:
        tracer._record_forward_stack_traces_only = False
        return real(tracer, frames)

    with mock.patch.object(fx.proxy.TracerBase, "_filter_traceback_frames", keeping):
        yield


def module_of(node: fx.Node, wrapped: bool) -> str | None:
    """The path of the module that issued this op; with a loss around the model, its own ops are in `loss`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack or stack[-1][0].startswith("_empty_nn_module_stack"):
        return None
    path = re.sub(r"@\d+", "", stack[-1][0])
    if not wrapped:
        return path
    return "loss" if not path else path.removeprefix("model").removeprefix(".")


def class_of(node: fx.Node) -> str:
    """The class of the module that issued this op, for a module of torch's that is the whole model."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][1]).rpartition(".")[2] if stack else ""
