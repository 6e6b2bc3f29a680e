"""How commands print, and where they may write."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from .. import terminal


def check_outputs(*paths: str | None) -> None:
    """Before any work: hours of training must not end in an error about a folder."""
    from .. import atomic

    for path in paths:
        if path:
            atomic.check(path)


def metrics_text(metrics: dict[str, Any]) -> str:
    parts = [f"{k} {v:.2%}" if k == "accuracy" else f"{k} {v:.4f}" for k, v in metrics.items() if k != "samples"]
    return ", ".join(parts)


def wrote(*paths: str | None) -> None:
    for path in paths:
        if path:
            print(f"wrote {path}")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(as_json: bool, name: str, keys: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    if as_json:
        return print_json({name: [dict(zip(keys, row, strict=True)) for row in rows]})
    left = max(len(first) for first, _ in rows)
    for first, second in rows:
        print(f"{terminal.paint(first.ljust(left), 'bold', colour=terminal.has_colour(sys.stdout))}  {second}")
