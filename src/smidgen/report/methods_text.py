"""All methods on one model as text and as JSON: the answer first, then a line for each. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ..compiler.fit.by_method import ByMethod, MethodRow
from ..terminal import bytes_text, paint, seconds_text
from .arena_picture import printable, wrapped
from .sweep_text import where_text

HEAD = ("method", "learns", "RAM", "flash", "a step", "inference", "fits")
WORDS = {"ram": "RAM", "flash": "flash"}


def methods_text(found: ByMethod, *, title: str = "", colour: bool = False, width: int = 100) -> str:
    lines = [paint(printable(title), "bold", colour=colour)] if title else []
    lines += [paint(line, "bold", colour=colour) for line in wrapped(answer(found), width)]
    rows = [_cells(found, row) for row in found.rows]
    widths = [max(len(row[k]) for row in (HEAD, *rows)) for k in range(len(HEAD) - 1)]

    def line(cells: tuple[str, ...]) -> str:
        first, *middle = (f"{cell:>{wide}}" if k else f"{cell:<{wide}}"
                          for k, (cell, wide) in enumerate(zip(cells[:-1], widths, strict=True)))  # fmt: skip
        start = "  ".join([first, *middle])
        room = max(width - len(start) - 2, 12)
        return f"{start}  {cells[-1] if len(cells[-1]) <= room else cells[-1][: room - 1] + '…'}"

    lines += ["", paint(line(HEAD), "bold", colour=colour), *map(line, rows), ""]
    return "\n".join([*lines, *(paint(text, "dim", colour=colour) for text in _legend(found, width))])


def answer(found: ByMethod) -> str:
    good = [row for row in found.rows if row.fits]
    if not good and found.rows:
        least = min(found.rows, key=lambda row: row.needs_bytes)
        return f"no method fits {_limit(found)}; {printable(least.method)} is the nearest: {_lacking(found, least)}"
    if not good:
        return "no method has anything to train in this model"
    most = max(good, key=lambda row: (row.own_parameters, row.learned_parameters))
    learns = f"{most.own_parameters:,} of {found.model_parameters:,} parameters"
    if found.ram_limit_bytes is None and found.deadline_s is None:
        return f"{printable(most.method)} learns most: {learns}, with {bytes_text(most.ram_bytes)} of RAM"
    return f"{printable(most.method)} learns most of what fits {_limit(found)}: {learns}"


def _limit(found: ByMethod) -> str:
    parts = [f"{bytes_text(found.ram_limit_bytes)} of RAM"] if found.ram_limit_bytes is not None else []
    parts += [f"{bytes_text(found.flash_limit_bytes)} of flash"] if found.flash_limit_bytes else []
    parts += [f"{seconds_text(found.deadline_s)} a step"] if found.deadline_s is not None else []
    text = ", ".join(parts)
    return f"{printable(found.device)} ({text})" if found.device else text


def _cells(found: ByMethod, row: MethodRow) -> tuple[str, ...]:
    """RAM of what does not fit is rounded up: as a budget it is enough."""
    ram = bytes_text(row.ram_bytes) if row.fits else bytes_text(row.needs_bytes, math.ceil)
    return (
        printable(row.method), f"{row.learned_parameters:,}", ram, bytes_text(row.flash_bytes),
        seconds_text(row.step_seconds), seconds_text(row.infer_seconds), _fits(found, row),
    )  # fmt: skip


def _fits(found: ByMethod, row: MethodRow) -> str:
    if not row.fits:
        return f"no, {_lacking(found, row)}"
    did = [printable(d.short or d.why) for d in row.decisions]
    return ", ".join(["yes", *did])


def _lacking(found: ByMethod, row: MethodRow) -> str:
    if row.lacks == "time":
        return f"takes {seconds_text(row.step_seconds)} a step"
    if row.lacks == "slot":
        return "the state is larger than a slot (--slot-bytes)"
    count = row.flash_bytes if row.lacks == "flash" else row.needs_bytes
    return f"needs {bytes_text(count, math.ceil)} of {WORDS[row.lacks]}"


def _legend(found: ByMethod, width: int) -> list[str]:
    samples = "1 sample" if found.samples == 1 else f"{found.samples} samples"
    text = [f"learns: parameters; a step of {samples} and an inference of 1, predicted {where_text(found.prices)}"]
    if not all(row.fits for row in found.rows):
        text.append("figures of what does not fit are those of its smallest plan")
    if found.left_out:
        names = {why: [m for m, w in found.left_out.items() if w == why] for why in found.left_out.values()}
        said = [f"{', '.join(map(printable, some))} ({printable(why)})" for why, some in names.items()]
        text.append(f"left out: {', '.join(said)}")
    return [line for one in text for line in wrapped(one, width, "  ")]


def methods_json(found: ByMethod) -> dict[str, Any]:
    given = {name: value for name, value in asdict(found).items() if name not in ("rows", "left_out", "device")}
    return {
        "device": found.device or None,
        **given,
        "methods": [{**asdict(row), "fits": row.fits, "lacks": row.lacks or None} for row in found.rows],
        "left_out": dict(found.left_out),
    }


__all__ = ["answer", "methods_json", "methods_text"]
