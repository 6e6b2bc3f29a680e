"""The arena of one entry point in characters: time to the right, addresses upwards, a letter on what fills the peak."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..ir import Array
from ..program.timeline import Span, Timeline, tensor_text
from ..terminal import bytes_text, paint

FILL: Final = {
    "saved": ("█", "blue"), "mask": ("▓", "cyan"), "activation": ("▒", "green"), "gradient": ("░", "yellow"),
    "input": ("▞", "magenta"), "accumulator": ("▚", "red"), "scratch": ("·", "dim"),
    "rows": ("═", "green"),
}  # fmt: skip
MEANING: Final = {
    "saved": "kept for backward", "mask": "kept as bits", "activation": "activation", "gradient": "gradient",
    "input": "input", "accumulator": "accumulator", "scratch": "scratch",
    "rows": "rows of a map",
}  # fmt: skip
BARS: Final = " ▁▂▃▄▅▆▇█"
LETTERS: Final = "ABCDEFGH"
GUTTER: Final = 11  # `1023 bytes`, and a blank


def printable(text: str) -> str:
    """Names come from models and files: nothing in them may steer the terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def cut(text: str, most: int) -> str:
    """At most so many characters; what is left out is in the middle, where module paths differ least."""
    if len(text) <= most:
        return text
    if most < 2:
        return "…"[:most]
    head = (most - 1) // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def arena_picture(
    timeline: Timeline, arena_bytes: int, *, width: int = 100, height: int = 18, colour: bool = False
) -> str:
    """The picture with its axes, a legend, and the list of what is alive at the peak."""
    moment, most = timeline.peak()
    if not most:
        return "nothing is in the arena"
    columns = max(16, width - GUTTER - 1)
    owner = _cells(timeline, arena_bytes, height, columns)
    marked = _letters(timeline, owner, moment)
    live = timeline.live()
    peak_column = min(columns - 1, int((moment + 0.5) / len(live) * columns))
    lines = [_peak_line(peak_column, columns, most), _curve(live, arena_bytes, columns)]
    ticks = {height - 1: arena_bytes, height // 2: arena_bytes * (height // 2) // height}
    for row in range(height - 1, -1, -1):
        label = bytes_text(ticks[row]) if row in ticks else "" if row else "0"
        lines.append(f"{label:>{GUTTER - 1}} ┤{_row(timeline.spans, owner, marked, row, colour)}")
    lines += [*_stages(timeline, columns), ""]
    kinds = {timeline.spans[i].kind for i in np.unique(owner) if i >= 0}
    lines += [*_legend(kinds, colour, width), "", *_alive(timeline, moment, most, marked, width)]
    return "\n".join(line.rstrip() for line in lines)


def _legend(kinds: set[str], colour: bool, width: int) -> list[str]:
    lines, room = [""], width
    for kind in (k for k in FILL if k in kinds):
        size = len(MEANING[kind]) + 5
        if room < size and lines[-1]:
            lines, room = [*lines, ""], width
        lines[-1] += f"{paint(_fill(kind, colour) * 2, FILL[kind][1], colour=colour)} {MEANING[kind]}  "
        room -= size
    return lines


def _fill(kind: str, colour: bool) -> str:
    return "█" if colour else FILL[kind][0]


def _cells(timeline: Timeline, arena_bytes: int, height: int, columns: int) -> Array:
    """[row from below, column] → the span that has most of the cell, or -1 where less than half of it is used."""
    count = len(timeline.moments)
    used, best = np.zeros((height, columns)), np.zeros((height, columns))
    owner = np.full((height, columns), -1, np.int64)
    for i, s in enumerate(timeline.spans):
        rows = _covered(s.offset / arena_bytes, (s.offset + s.bytes) / arena_bytes, height)
        area = np.outer(rows, _covered(s.first / count, (s.last + 1) / count, columns))
        used += area
        owner[area > best] = i
        best = np.maximum(best, area)
    owner[used < 0.5] = -1
    return owner


def _covered(start: float, end: float, parts: int) -> Array:
    """How much of each of `parts` equal parts of 0…1 lies between start and end."""
    edges = np.arange(parts + 1) / parts
    shared = np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1])
    return np.asarray(np.clip(shared, 0, None) * parts)


def _letters(timeline: Timeline, owner: Array, moment: int) -> dict[Span, tuple[str, int, int]]:
    """The largest tensors at the peak → letter, row and column in the middle of what can be seen of them."""
    found: dict[Span, tuple[str, int, int]] = {}
    number = {id(s): i for i, s in enumerate(timeline.spans)}
    for span in timeline.alive(moment)[: len(LETTERS)]:
        rows, columns = np.nonzero(owner == number[id(span)])
        if len(rows):
            away = (rows - np.median(rows)) ** 2 * 16 + (columns - np.median(columns)) ** 2
            best = int(np.argmin(away))
            found[span] = (LETTERS[len(found)], int(rows[best]), int(columns[best]))
    return found


def _row(spans: Sequence[Span], owner: Array, marked: dict[Span, tuple[str, int, int]], row: int, colour: bool) -> str:
    letters = {column: letter for letter, at, column in marked.values() if at == row}
    above = owner[row + 1] if row + 1 < len(owner) else np.full_like(owner[row], -1)
    cells: list[tuple[str, str]] = []  # (style, character)
    for column, (i, over) in enumerate(zip(owner[row], above, strict=True)):
        fill, style = (_fill(spans[i].kind, colour), FILL[spans[i].kind][1]) if i >= 0 else (" ", "")
        if fill == "█" and over not in (-1, i):
            fill = "▇"  # a line between two tensors
        cells.append(("bold", letters[column]) if column in letters else (style, fill))
    runs = [(style, "".join(c for _, c in run)) for style, run in itertools.groupby(cells, key=lambda cell: cell[0])]
    return "".join(paint(text, style, colour=colour) if style else text for style, text in runs)


def _peak_line(column: int, columns: int, most: int) -> str:
    text = f"peak {bytes_text(most)}"
    after = column + 2 + len(text) <= columns
    line = f"{' ' * column}▼ {text}" if after else f"{text} ▼".rjust(column + 1)
    return " " * (GUTTER + 1) + line


def _curve(live: Sequence[int], arena_bytes: int, columns: int) -> str:
    cells = []
    for column in range(columns):
        first = column * len(live) // columns
        last = max(first + 1, -(-(column + 1) * len(live) // columns))
        share = max(live[first:last]) / arena_bytes
        cells.append(BARS[max(1, round(share * 8))] if share else " ")
    return f"{'in use':>{GUTTER - 1}}  {''.join(cells)}"


def segments(timeline: Timeline) -> list[tuple[str, int, int]]:
    """(name, first, last) of the parts of an entry point that follow each other."""
    stages = [m.stage for m in timeline.moments]
    turn = stages.index("backward") if "backward" in stages else len(stages)
    found: list[tuple[str, int, int]] = []
    for i, stage in enumerate(stages):
        looped = timeline.loop is not None and 0 <= i - timeline.loop[0] <= timeline.loop[1]
        name = "backward" if i >= turn else "update" if stage == "update" else "forward"
        name = "sample by sample" if looped else name
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], i)
        else:
            found.append((name, i, i))
    return found


def _stages(timeline: Timeline, columns: int) -> list[str]:
    line, count = "", len(timeline.moments)
    for name, _, last in segments(timeline):
        room = round((last + 1) / count * columns) - len(line) - 1
        if room >= 0:
            line += ("┴" if line else "└") + (f" {name} " if room >= len(name) + 2 else "").center(room, "─")
    after = f"{'1 instruction' if count == 1 else f'{count:,} instructions'} →"
    return [" " * (GUTTER + 1) + line, " " * (GUTTER + 1) + f"{'time':<{columns - len(after)}}{after}"]


def _alive(
    timeline: Timeline, moment: int, most: int, marked: dict[Span, tuple[str, int, int]], width: int
) -> list[str]:
    now, spans = timeline.moments[moment], timeline.alive(moment)
    where = f"{printable(now.op)} of {cut(printable(now.layer), width - 50)}, {now.stage}"
    text = f"at the peak: {where} (instruction {moment + 1} of {len(timeline.moments)}); {bytes_text(most)} in use"
    lines = wrapped(text, width, "  ")
    shown = spans[: len(LETTERS)] if len(spans) > len(LETTERS) + 1 else spans
    names = [cut(printable(tensor_text(span.tensor)), max(12, width - 36)) for span in shown]
    for span, name in zip(shown, names, strict=True):
        letter = marked[span][0] if span in marked else " "
        lines.append(f"  {letter} {bytes_text(span.bytes):>10}  {name:<{max(map(len, names))}}  {MEANING[span.kind]}")
    if len(spans) > len(shown):
        rest = spans[len(shown) :]
        lines.append(f"    {bytes_text(sum(s.bytes for s in rest)):>10}  {len(rest)} more")
    return lines
