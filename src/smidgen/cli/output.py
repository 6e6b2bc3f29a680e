"""How commands print, and where they may write."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import terminal
from ..errors import BadOption


def check_outputs(*paths: str | None, inputs: Sequence[str | None] = ()) -> None:
    """Before any work: hours of training must not end in an error about a folder, nor in the place of their data."""
    from .. import files

    taken = [Path(path) for path in inputs if path]
    for path in paths:
        if path is None:
            continue
        place = files.checked_path(path, "name a file")
        if any(_is_same(place, other) for other in taken):
            raise BadOption(f"'{path}' is named twice", why="writing it would replace what is read or written there")
        files.check(place)
        taken.append(place)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other) or (one.exists() and other.exists() and one.samefile(other))


def metrics_text(metrics: dict[str, Any]) -> str:
    parts = [f"{k} {v:.2%}" if k == "accuracy" else f"{k} {v:.4f}" for k, v in metrics.items() if k != "samples"]
    return ", ".join(parts)


def wrote(*paths: str | None) -> None:
    for path in paths:
        if path:
            print(f"wrote {path}")


def print_json(value: Any) -> None:
    """JSON has no NaN and no infinity: they are null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(as_json: bool, name: str, keys: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first two columns on a line, what there is of the others below it."""
    if as_json:
        return print_json({name: [dict(zip(keys, row, strict=True)) for row in rows]})
    left = max(len(first) for first, *_ in rows)
    colour = terminal.has_colour(sys.stdout)
    for first, second, *others in rows:
        print(f"{terminal.paint(first.ljust(left), 'bold', colour=colour)}  {second}")
        for key, text in zip(keys[2:], others, strict=True):
            if text:
                print(f"{' ' * left}  {terminal.paint(f'{key} {text}', 'dim', colour=colour)}")
