"""What a search found as one HTML page: accuracy that each part gains against the bytes that it costs. Nothing but the
file itself: no network, no script."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterator

from .. import files, terminal
from ..schemes import Found
from .scheme_text import answer, scheme_text

WIDE, HIGH, LEFT, BELOW = 760, 420, 64, 44
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #8886; --dot: #2b6cb0; --chosen: #c05621 }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #161616; --dot: #63b3ed; --chosen: #f6ad55 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 800px; padding: 0 1rem }
svg { width: 100%; height: auto } text { fill: var(--ink); font-size: 12px } pre { overflow-x: auto }
.grid { stroke: var(--faint) } circle { fill: var(--dot) } circle.chosen { fill: var(--chosen) }
"""


def write(found: Found, path: str | os.PathLike[str], *, title: str = "") -> None:
    """The page appears complete or not at all."""
    target = files.checked_path(path, 'scheme_html.write(found, "scheme.html")')
    files.write(target, html_page(found, title=title).encode("utf-8", "replace"))


def html_page(found: Found, *, title: str = "") -> str:
    name = html.escape(title or "a model")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}: what to learn</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>\n'
        f"<h1>{name}</h1><p>{html.escape(answer(found))}</p>\n{picture(found)}\n"
        f"<pre>{html.escape(scheme_text(found))}</pre>\n</html>\n"
    )


def picture(found: Found) -> str:
    most_bytes = max([row.bytes for row in found.rows], default=1) or 1
    gains = [row.gain for row in found.rows] or [0.0]
    low, high = min(0.0, *gains), max(0.01, *gains)
    chosen = set(found.scheme.replace("w", "").replace(",", " ").split())

    def place(cost: float, gain: float) -> tuple[float, float]:
        x = LEFT + (WIDE - LEFT - 20) * max(cost, 0) / most_bytes
        return round(x, 1), round(HIGH - BELOW - (HIGH - BELOW - 20) * (gain - low) / (high - low), 1)

    parts = [f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="gain of each part against its bytes">']
    for gain in _ticks(low, high):
        _, y = place(0, gain)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDE - 10}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{100 * gain:+.0f}</text>')
    for cost in _ticks(0, most_bytes):
        x, _ = place(cost, low)
        text = terminal.bytes_text(round(cost))
        parts.append(f'<text x="{x}" y="{HIGH - BELOW + 20}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{WIDE - 10}" y="{HIGH - 6}" text-anchor="end">RAM beside the classifier\'s</text>')
    parts.append('<text x="4" y="14">points of accuracy gained</text>')
    for row in found.rows:
        x, y = place(row.bytes, row.gain)
        kind = ' class="chosen"' if row.part in chosen else ""
        said = f"{row.part}: {100 * row.gain:+.1f} points, {terminal.bytes_text(row.bytes)}"
        parts.append(f'<circle cx="{x}" cy="{y}" r="5"{kind}><title>{html.escape(said)}</title></circle>')
        parts.append(f'<text x="{x + 7}" y="{y - 5}">{html.escape(row.part)}</text>')
    return "\n".join([*parts, "</svg>"])


def _ticks(low: float, high: float) -> Iterator[float]:
    """Some four round numbers."""
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield i * step


__all__ = ["html_page", "picture", "write"]
