"""A comparison of methods on episodes, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from .. import terminal

BAR, GAP, LEFT, WIDTH = 14, 18, 130, 420
COLOURS: Final = ("#8c8c8c", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377")


def fewshot_text(found: Mapping[str, Any], *, colour: bool = False) -> str:
    """One line for each method, one column for each set, in percent with intervals of 95 %."""
    rows: Sequence[Mapping[str, Any]] = found["rows"]
    sets, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("set", "method"))
    cells = {(row["method"], row["set"]): f"{100 * row['accuracy']:.1f} ±{100 * row['interval']:.1f}" for row in rows}
    wide = max(len(m) for m in (*methods, "method"))
    columns = [max(len(s), *(len(cells[m, s]) for m in methods)) for s in sets]

    def line(first: str, texts: Sequence[str], last: str) -> str:
        both = [text.rjust(column) for text, column in zip(texts, columns, strict=True)]
        return "  ".join([first.ljust(wide), *both, last]).rstrip()

    lines = [terminal.paint(line("method", sets, "    RAM   learns"), "bold", colour=colour)]
    for method in methods:
        plan = found.get("plans", {}).get(method)
        last = "" if plan is None else f"{terminal.bytes_text(plan['ram_bytes']):>8}  {plan['learned_parameters']:,}"
        lines.append(line(method, [cells[method, s] for s in sets], last))
    episodes = rows[0]["episodes"] if rows else 0
    return "\n".join([*lines, "", f"accuracy in percent, {episodes} episodes a set; ± half of an interval of 95 %"])


def fewshot_svg(found: Mapping[str, Any]) -> str:
    """Bars from 0 to 100 %, with their intervals."""
    rows: Sequence[Mapping[str, Any]] = found["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    parts: list[str] = []
    y, before = 10, None
    for row in rows:
        if row["set"] != before:
            y += GAP
            parts.append(f'<text x="4" y="{y}" font-weight="bold">{escape(row["set"])}</text>')
            y, before = y + 6, row["set"]
        fill = COLOURS[methods.index(row["method"]) % len(COLOURS)]
        wide, half, end = WIDTH * row["accuracy"], WIDTH * row["interval"], LEFT + WIDTH * row["accuracy"]
        parts += [
            f'<text x="{LEFT - 6}" y="{y + BAR - 3}" text-anchor="end">{escape(row["method"])}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR - 2}" fill="{fill}"/>',
            f'<path d="M{end - half:.1f} {y + BAR // 2}H{end + half:.1f}" stroke="black"/>',
            f'<text x="{end + half + 6:.1f}" y="{y + BAR - 3}">{100 * row["accuracy"]:.1f} %</text>',
        ]
        y += BAR
    size = f'width="{LEFT + WIDTH + 90}" height="{y + GAP}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, *parts, "</svg>", ""])


__all__ = ["fewshot_svg", "fewshot_text"]
