"""A sweep, and the largest batch, as text and as JSON: the answer first. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ..compiler.fit.max_batch import Largest
from ..compiler.fit.sweep import MEANING, Point, Sweep
from ..terminal import bytes_text, paint, seconds_text
from .arena_picture import printable, wrapped

NO = "·"  # it does not fit


def share_text(extra: float | None) -> str:
    """`+38 %`, `0`, or a dot if there is none."""
    if extra is None:
        return NO
    percent = extra * 100
    text = f"{percent:+.0f}" if abs(percent) >= 9.5 else f"{percent:+.1f}"
    return "0" if float(text) == 0 else f"{text} %"


def where_text(prices: str) -> str:
    return "on a typical desktop core" if prices == "host" else f"on {printable(prices)}"


def answer(sweep: Sweep) -> str:
    what = "energy" if sweep.objective == "energy" else "time"
    low = min(
        (p for p in sweep.points if p.technique == "joint" and p.fits), key=lambda p: p.budget_bytes, default=None
    )
    if low is None:
        return f"fits from {bytes_text(sweep.smallest_bytes, math.ceil)} only, as it is"
    if low.budget_bytes >= sweep.base_bytes:
        return f"fits from {bytes_text(sweep.smallest_bytes, math.ceil)} only: nothing that was tried makes it smaller"
    price = share_text(sweep.extra(low))
    price = f"no extra {what}" if price == "0" else f"{price} {what}"
    least, most = bytes_text(low.budget_bytes, math.ceil), bytes_text(sweep.base_bytes)
    return f"fits from {least} ({price}) to {most} (no extra {what})"


def sweep_text(sweep: Sweep, *, title: str = "", colour: bool = False, width: int = 100) -> str:
    samples = "1 sample" if sweep.batch == 1 else f"{sweep.batch} samples"
    lines = [paint(printable(title), "bold", colour=colour)] if title else []
    lines += [paint(answer(sweep), "bold", colour=colour)]
    facts = [
        ("smallest", bytes_text(sweep.smallest_bytes, math.ceil), f"{sweep.smallest_bytes:,} bytes; less is refused"
         + ("" if sweep.page else " unless tensors may be paged (--page-to)")),
        ("no budget", bytes_text(sweep.base_bytes), f"a step of {samples} takes about {seconds_text(sweep.base_s)} and "
         f"{sweep.base_j:.3g} J {where_text(sweep.prices)}"),
        ("floor", bytes_text(sweep.floor_bytes), "state and the runtime's own memory"),
    ]  # fmt: skip
    for name, figure, text in facts:
        first, *rest = wrapped(text, width - 25)
        lines += [f"{name:<10} {figure:>10}   {first}", *(" " * 24 + t for t in rest)]
    return "\n".join([*lines, "", *_table(sweep, colour), "", *_legend(sweep, colour, width)])


def _table(sweep: Sweep, colour: bool) -> list[str]:
    names = sweep.techniques
    head = ["budget", *names, "bound"]
    rows = []
    for budget in reversed(sweep.budgets):
        points = [sweep.at(name, budget) for name in names]
        bound = sweep.at("joint", budget).bound_s
        least = None if bound is None or sweep.objective == "energy" else bound / sweep.base_s - 1
        rows.append([bytes_text(budget), *(_cell(sweep, point) for point in points), share_text(least)])
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]

    def line(cells: list[str]) -> str:
        return "  ".join(f"{cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))

    return [paint(line(head), "bold", colour=colour), *map(line, rows)]


def _cell(sweep: Sweep, point: Point) -> str:
    text = share_text(sweep.extra(point))
    return text if point.parts == 1 else f"{text} in {point.parts}"


def _legend(sweep: Sweep, colour: bool, width: int) -> list[str]:
    what = "energy" if sweep.objective == "energy" else "time"
    text = [f"extra {what} of a step, predicted; {NO} does not fit; `in 4`: in 4 micro-batches"]
    text += [f"{name}: {MEANING[name]}" for name in sweep.techniques]
    text.append("bound: no step without micro-batches can take less")
    return [paint(line, "dim", colour=colour) for one in text for line in wrapped(one, width, "  ")]


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    given = {name: value for name, value in asdict(sweep).items() if name != "points"}
    return {
        **given,
        "techniques": {name: MEANING[name] for name in sweep.techniques},
        "points": [{**asdict(p), "extra": sweep.extra(p)} for p in sweep.points],
    }


def largest_text(found: Largest, *, title: str = "", colour: bool = False, width: int = 100) -> str:
    rate = found.samples_per_s
    speed = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    head = f"batch {found.batch}: {'more was not tried' if found.at_most else 'the largest found to fit'} within "
    head += f"{bytes_text(found.budget_bytes)}; takes {bytes_text(found.ram_bytes)}, about {speed} samples/s"
    lines = [paint(printable(title), "bold", colour=colour)] if title else []
    lines.append(paint(head, "bold", colour=colour))
    text = "a step of this many samples fits as one batch; larger ones need micro-batches (--accumulate). "
    text += f"A step takes about {seconds_text(found.seconds)} and {found.joules:.3g} J {where_text(found.prices)}"
    lines += wrapped(text, width)
    for decision in found.decisions:
        lines += wrapped(f"  {printable(decision.kind)}: {printable(decision.why)}", width, "    ")
    return "\n".join(lines)


def largest_json(found: Largest) -> dict[str, Any]:
    return {
        "batch": found.batch, "budget_bytes": found.budget_bytes, "ram_bytes": found.ram_bytes,
        "page_bytes": found.page_bytes, "seconds_per_step": found.seconds, "samples_per_s": found.samples_per_s,
        "joules_per_step": found.joules, "prices": found.prices, "at_most": found.at_most,
        "decisions": [asdict(d) for d in found.decisions],
    }  # fmt: skip


__all__ = ["answer", "largest_json", "largest_text", "share_text", "sweep_json", "sweep_text", "where_text"]
