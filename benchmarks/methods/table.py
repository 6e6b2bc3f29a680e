"""docs/results/methods.md and methods.svg, from docs/results/methods.json."""

from __future__ import annotations

import html
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from smidgen.terminal import bytes_text, count_text, seconds_text

from .intervals import half_width
from .run import PUBLISHED, chosen

COLOURS: Final = {"last_layer": "#999999", "bias": "#4477aa", "tinytl": "#228833", "sparse_update": "#d6232a",
                  "published": "#ee7733", "lora": "#aa3377", "full": "#222222"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    task: str
    method: str
    kind: str  # of method; `published` is a scheme of others
    optimizer: str
    rate: float
    accuracies: tuple[float, ...]  # by seed
    sizes: Mapping[str, Any]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def half_width(self) -> float:
        return half_width(self.accuracies)


def rows(runs: Mapping[str, Any]) -> list[Row]:
    """What was chosen by validation; runs of other rates are no rows, even where they were reported once."""
    given = [(json.loads(key), found) for key, found in runs.items()]
    sizes = {(g["task"], g["method"], _optimizer(g)): found for g, found in given if g["do"] == "sizes"}
    best = chosen(runs)
    reported: dict[tuple[str, str], dict[int, float]] = {}
    for g, found in given:
        if g["do"] == "learn" and g.get("report") and (_optimizer(g), g["rate"]) == best[_task(g)]:
            reported.setdefault(_task(g), {})[g["seed"]] = found.get("report", 0.0)
    made = [
        Row(*key, _kind(*key), *best[key], tuple(by_seed[s] for s in sorted(by_seed)), sizes[*key, best[key][0]])
        for key, by_seed in reported.items() if len(by_seed) > 1
    ]  # fmt: skip
    order = list(COLOURS)
    return sorted(made, key=lambda row: (row.task, order.index(row.kind)))


def _task(given: Mapping[str, Any]) -> tuple[str, str]:
    return given["task"], given["method"]


def _optimizer(given: Mapping[str, Any]) -> str:
    return str(given.get("optimizer", "momentum"))


def _kind(task: str, method: str) -> str:
    if method == "tinytl:bias":
        return "bias"
    published = PUBLISHED.get(task.split("/")[0])
    return "published" if published and method == f"sparse_update:{published}" else method.split(":")[0]


def page(report: Mapping[str, Any], splits: Mapping[str, str]) -> str:
    found = rows(report["runs"])
    parts = [
        "# What each method learns",
        "`python -m benchmarks.methods`: pretrained networks learn another task; learning rate and scheme are chosen "
        "on validation samples, the accuracy is that on test samples, mean over seeds with its 95 % interval. RAM is "
        "all of it, with the exact kernels of boards; MACs are those of a step of one sample; seconds are those of "
        f"one processor for a step of eight ({report['machine']['cpu']}, {report['date']}).",
        "![accuracy against RAM](methods.svg)",
    ]
    for task in dict.fromkeys(row.task for row in found):
        parts += [
            f"## {task}",
            f"Learn / choose / report: {splits[task]}.",
            _table([r for r in found if r.task == task]),
        ]
    return "\n\n".join(parts) + "\n"


def _table(found: Sequence[Row]) -> str:
    lines = ["| method | accuracy, % | RAM, batch 8 | batch 1 | learns | MACs a sample | step of eight | optimizer |",
             "| --- |" + " ---: |" * 7]  # fmt: skip
    for row in found:
        s = row.sizes
        name = f"`{row.method}`" + (" (published)" if row.kind == "published" else "")
        lines.append(
            f"| {name} | {100 * row.mean:.1f} ± {100 * row.half_width:.1f} | {bytes_text(s['ram_bytes_8'])} | "
            f"{bytes_text(s['ram_bytes_1'])} | {count_text(s['learned'])} | {count_text(s['macs'])} | "
            f"{seconds_text(s['step_s'])} | {row.optimizer} {row.rate:g} |"
        )
    return "\n".join(lines)


# -- picture -----------------------------------------------------------------------------------------------------------

WIDE, HIGH, LEFT, TOP, COLUMNS = 330, 220, 50, 40, 2


def svg(found: Sequence[Row]) -> str:
    """One panel a task: accuracy against RAM at batch 1, logarithmic."""
    tasks = list(dict.fromkeys(row.task for row in found))
    lines = -(-len(tasks) // COLUMNS)
    width, height = COLUMNS * (WIDE + LEFT + 20), lines * (HIGH + TOP + 30) + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>']  # fmt: skip
    for i, kind in enumerate(COLOURS):
        parts.append(f'<circle cx="{60 + 100 * i}" cy="16" r="4" fill="{COLOURS[kind]}"/>'
                     f'<text x="{68 + 100 * i}" y="20">{kind}</text>')  # fmt: skip
    for number, task in enumerate(tasks):
        x, y = (number % COLUMNS) * (WIDE + LEFT + 20) + LEFT, (number // COLUMNS) * (HIGH + TOP + 30) + TOP + 20
        parts += _panel(task, [row for row in found if row.task == task], x, y)
    return "\n".join([*parts, "</svg>\n"])


def _panel(task: str, found: Sequence[Row], left: int, top: int) -> list[str]:
    ram = [math.log(row.sizes["ram_bytes_1"]) for row in found]
    low, high = min(row.mean - row.half_width for row in found), max(row.mean + row.half_width for row in found)
    near, far = min(ram) - 0.2, max(ram) + 0.2
    span = max(high - low, 0.01)

    def at_y(value: float) -> float:
        return top + HIGH - (value - low + 0.05 * span) / (1.1 * span) * HIGH

    parts = [f'<rect x="{left}" y="{top}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#bbb"/>',
             f'<text x="{left}" y="{top - 6}" font-weight="bold">{html.escape(task)}</text>']  # fmt: skip
    for share in (0.0, 0.5, 1.0):
        value, place = low + share * span, math.exp(near + share * (far - near))
        parts.append(f'<text x="{left - 6}" y="{at_y(value) + 4:.0f}" text-anchor="end">{100 * value:.0f} %</text>')
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
        parts.append(f'<text x="{left + share * WIDE:.0f}" y="{top + HIGH + 14}" text-anchor="{anchor}">'
                     f"{bytes_text(round(place))}</text>")  # fmt: skip
    for row, logarithm in zip(found, ram, strict=True):
        x = left + (logarithm - near) / (far - near) * WIDE
        y0, y1 = at_y(row.mean - row.half_width), at_y(row.mean + row.half_width)
        colour = COLOURS[row.kind]
        parts.append(f'<line x1="{x:.1f}" y1="{y0:.1f}" x2="{x:.1f}" y2="{y1:.1f}" stroke="{colour}"/>'
                     f'<circle cx="{x:.1f}" cy="{at_y(row.mean):.1f}" r="4" fill="{colour}">'
                     f"<title>{html.escape(row.method)}: {100 * row.mean:.1f} %</title></circle>")  # fmt: skip
    return parts


__all__ = ["Row", "half_width", "page", "rows", "svg"]
