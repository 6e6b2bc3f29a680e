"""Where something is in the user's own code: module paths and source lines, for messages."""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
import traceback
import types
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import fx

OURS = str(Path(__file__).parent.parent)
TORCH = str(Path(torch.__file__).parent)
PYTHON = sysconfig.get_paths()["stdlib"]
FRAME = re.compile(r'File "(.+?)", line (\d+), in [^\n]*\n?([^\n]*)')


def is_users(path: str) -> bool:
    """Not torch's, Python's or ours."""
    builtin = path.startswith(PYTHON) and "site-packages" not in path
    return os.path.exists(path) and not builtin and not path.startswith((OURS, TORCH))


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
    trace = node.meta.get("stack_trace") or ""
    return last_of((path, int(line), code) for path, line, code in FRAME.findall(trace))


def module_of(node: fx.Node, wrapped: bool) -> str | None:
    """The path of the module that issued this op; with a loss around the model, its own ops are in `loss`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack or stack[-1][0].startswith("_empty_nn_module_stack"):
        return None
    path = re.sub(r"@\d+", "", stack[-1][0])
    if not wrapped:
        return path
    return "loss" if not path else path.removeprefix("model").removeprefix(".")
