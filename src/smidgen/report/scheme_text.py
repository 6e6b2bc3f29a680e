"""What a search for a scheme found, for people and as JSON."""

from __future__ import annotations

from typing import Any

from .. import terminal
from ..schemes import Found


def scheme_json(found: Found) -> dict[str, Any]:
    return found.to_json()


def answer(found: Found) -> str:
    gained = 100 * (found.accuracy - found.before)
    return (
        f"{found.scheme}: accuracy {found.accuracy:.1%}, {gained:+.1f} points above the classifier alone, "
        f"in {terminal.bytes_text(found.ram_bytes)} of RAM"
    )


def scheme_text(found: Found, *, title: str = "", colour: bool = False) -> str:
    """The answer, then what each part gains alone and what it costs, the best a byte first."""
    lines = [terminal.paint(answer(found), "bold", colour=colour), ""]
    if title:
        lines.insert(0, title)
    rows = sorted(found.rows, key=lambda row: -row.gain / max(row.bytes, 1))
    width = max([len(row.part) for row in rows], default=0)
    lines.append(f"{'part'.ljust(width)}  {'gains':>7}  {'costs':>9}   alone, beside the classifier")
    chosen = set(found.scheme.replace("w", "").replace(",", " ").split())
    for row in rows:
        mark = "  chosen" if row.part in chosen else ""
        lines.append(f"{row.part.ljust(width)}  {100 * row.gain:+6.1f}%  {terminal.bytes_text(row.bytes):>9}{mark}")
    lines += ["", f'method="sparse_update:{found.scheme}", learning rate about {found.rate:g}']
    return "\n".join(lines)


__all__ = ["answer", "scheme_json", "scheme_text"]
