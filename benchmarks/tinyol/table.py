"""docs/results/tinyol.md and tinyol.svg, from docs/results/tinyol.json."""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from smidgen.terminal import bytes_text, count_text, seconds_text

from ..methods.intervals import half_width
from .motion import DRIFT_LIMIT
from .words import AIM, KEPT, MOST_LOST, NEW, OLD, STEPS

Json = dict[str, Any]
ACTIVITIES: Final = ("all", "jogging", "stairs", "sitting", "standing", "kicking")
ARMS: Final = {"replay": "with replay", "alone": "without", "alone_new": "without, best for new words"}
COLOURS: Final = {"replay": "#228833", "alone": "#4477aa", "alone_new": "#d6232a"}


def of(report: Mapping[str, Any], **wanted: Any) -> Iterator[tuple[Json, Json]]:
    """Runs whose settings have these values."""
    for key, found in report["runs"].items():
        given = json.loads(key)
        if all(given.get(name) == value for name, value in wanted.items()):
            yield given, found


def interval(values: Sequence[float], scale: float = 1, form: str = ".1f") -> str:
    mean, half = scale * statistics.fmean(values), scale * half_width(values)
    return f"{mean:{form}} ± {half:{form.lstrip('+')}}"


def page(report: Mapping[str, Any]) -> str:
    return "\n\n".join([
        "# What a device learns from a stream",
        f"`{report['command']}` ({report['machine']['cpu']}, {report['date']}). Intervals hold the mean with 95 % "
        "probability.",
        *_motion(report), *_words(report), *_board(report),
    ]) + "\n"  # fmt: skip


# -- motion ------------------------------------------------------------------------------------------------------------


def _motion(report: Mapping[str, Any]) -> list[str]:
    runs = [
        found | {"after": next(iter(found["after"].values()))} for _, found in of(report, do="motion", part="report")
    ]
    rate = next(g["rates"][0] for g, _ in of(report, do="motion", part="report"))
    chosen = sum(1 for _ in of(report, do="motion", part="choose"))
    lines = ["| unusual is | who it knows, AUC | who comes, before | after | gained |", "| --- |" + " ---: |" * 4]
    for name in ACTIVITIES:
        here = [r for r in runs if name in r["before"]]
        before, after = ([r[when][name] for r in here] for when in ("before", "after"))
        own = [r["own"][name] for r in runs if name in r["own"]]
        gained = [b - a for a, b in zip(before, after, strict=True)]
        lines.append(f"| {'any of these' if name == 'all' else name} | {interval(own, form='.3f')} | "
                     f"{interval(before, form='.3f')} | {interval(after, form='.3f')} | "
                     f"{interval(gained, form='+.3f')} |")  # fmt: skip
    better = sum(r["after"]["all"] > r["before"]["all"] for r in runs)
    known, comes = ([r[f"drift_{who}"] for r in runs] for who in ("known", "comes"))
    right = sum(a <= DRIFT_LIMIT < b for a, b in zip(known, comes, strict=True))
    higher = sum(b > a for a, b in zip(known, comes, strict=True))
    drift = ["| | median drift | above the limit |", "| --- | ---: | ---: |"]
    for title, values in (("the person it knows, later", known), ("another person", comes)):
        above = sum(v > DRIFT_LIMIT for v in values)
        drift.append(f"| {title} | {statistics.median(values):.2f} | {above} of {len(values)} |")
    return [
        "## Another person's walking",
        f"WISDM, {len(runs)} pairs of people, everybody once as the one who is known and once as the one who comes. "
        "An autoencoder of 30 features of 3 s of a watch's accelerometer was trained on 80 s of one person's walking; "
        "`tinyol` learns 60 s of the other's, sample by sample, once, without labels. Scored are the next 60 s against "
        f"that person's other activities. The rate, {rate:g}, was chosen by {chosen} pairs of other people.",
        "\n".join(lines),
        f"It is better after than before for {better} of {len(runs)} pairs. `job.drift` after 30 samples, the limit is "
        f"{DRIFT_LIMIT:g}:",
        "\n".join(drift),
        f"Of the {len(runs)} pairs, drift is signalled for who comes and not for who is known in {right}, and it is "
        f"higher for who comes in {higher}. The mean that drift is computed from takes a thirty-second of each sample: "
        "after 30 it has gone 61 % of the way, so that a drift which lasts is signalled later.",
    ]


# -- words -------------------------------------------------------------------------------------------------------------


def curves(report: Mapping[str, Any]) -> dict[str, dict[str, list[list[float]]]]:
    """Arm → old and new → after each word (old: before, too) → accuracy of each seed."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for arm in ARMS:
        runs = [run for _, run in of(report, do="words", part="report", arm=arm)]
        found[arm] = {
            kind: [list(row) for row in zip(*(r[kind] for r in runs), strict=True)] for kind in ("old", "new")
        }
    return found


def _lost(values: Mapping[str, list[list[float]]]) -> list[float]:
    return [after - before for before, after in zip(values["old"][0], values["old"][-1], strict=True)]


def aim(found: Mapping[str, dict[str, list[list[float]]]]) -> str:
    lost, chosen = -statistics.fmean(_lost(found["replay"])), f"{100 * MOST_LOST:g} on the speakers it was chosen by"
    missed = f"is missed by {100 * (lost - AIM):.1f}: what lost at most {chosen} loses more on others"
    said = "is met" if lost <= AIM else missed
    return f"The aim, that old words lose at most {100 * AIM:g} points with replay, {said}."


def _words(report: Mapping[str, Any]) -> list[str]:
    found = curves(report)
    rates = {arm: next(g["rate"] for g, _ in of(report, do="words", part="report", arm=arm)) for arm in ARMS}
    base = next(g["base"] for g, _ in of(report, do="words", part="report"))
    step = next(g["step"] for g, _ in of(report, do="words", part="report", arm="replay"))
    head = " | ".join(f"old, {title} | new" for title in ARMS.values())
    lines = [f"| words learned | {head} |", "| ---: |" + " ---: |" * 6]
    for k in range(NEW + 1):
        cells = [interval(found[arm][kind][k - (kind == "new")], 100) if k or kind == "old" else "–"
                 for arm in ARMS for kind in ("old", "new")]  # fmt: skip
        lines.append(f"| {k} | {' | '.join(cells)} |")
    seeds = len(found["replay"]["old"][0])
    lost = {arm: interval(_lost(found[arm]), 100, "+.1f") for arm in ARMS}
    size = next(run for _, run in of(report, do="sizes"))
    replay, alone = size["replay"], size["alone"]
    return [
        "## Ten new words",
        f"A DS-CNN (MLPerf Tiny) was trained on {OLD} Arabic words of 18 speakers, and learns {NEW} more with "
        "`tinyol`, one after the other, each from 36 samples that come once (`job.learn`). Accuracy in % on six other "
        f"speakers, mean of {seeds} seeds, which draw the new words. With replay, a step has a new sample and "
        f"{step - 1} of a buffer of {KEPT} int8 features. Rates, and samples of a step ({', '.join(map(str, STEPS))}), "
        "were chosen by six speakers and seeds of their own: the one that learns new words best of those at which old "
        f"ones lose at most {100 * MOST_LOST:g} points there (with replay {rates['replay']:g}, without "
        f"{rates['alone']:g}); the last columns are for the rate that learns new words best without replay, whatever "
        f"the old ones lose ({rates['alone_new']:g}). The rate of the old words themselves, {base:g}, was chosen in "
        "the same way, and so was how they are trained.",
        "![accuracy on old and new words after each](tinyol.svg)",
        "\n".join(lines),
        f"Old words change by {lost['replay']} points with replay, {lost['alone']} without, {lost['alone_new']} at the "
        f"rate that is best for new words. {aim(found)}",
        "On a Nano 33 BLE the program with replay takes "
        f"{bytes_text(replay['ram_bytes'])} of RAM, {bytes_text(replay['replay_bytes'])} of it the buffer; without, "
        f"{bytes_text(alone['ram_bytes'])}.",
    ]


# -- board -------------------------------------------------------------------------------------------------------------


def _board(report: Mapping[str, Any]) -> list[str]:
    b = next(run for _, run in of(report, do="board"))
    hz = b["clock_hz"]
    rows = [
        ("same bits as on the host: state, scores, drift", "yes" if b["same_bits"] else "no"),
        ("RAM, planned and linked", f"{b['ram_bytes']:,} bytes, {b['linked_ram_bytes']:,} bytes"),
        ("flash: code, program", f"{bytes_text(b['code_bytes'])}, {bytes_text(b['program_bytes'])}"),
        ("learns", f"{count_text(b['learned'])} parameters, {b['samples']} samples"),
        ("AUC before and after", f"{b['auc_before']:.3f}, {b['auc_after']:.3f}"),
        *((f"a sample {what}", f"{b[key]:,} instructions, {seconds_text(b[key] / hz)} at {hz / 1e6:g} MHz, one a cycle")
          for what, key in (("learned", "learn_instructions"), ("scored", "detect_instructions"))),
    ]  # fmt: skip
    return [
        "## On a Nano 33 BLE",
        f"The autoencoder of the first pair as firmware for the `{b['device']}`, run by QEMU on a board with its core "
        f"({b['machine']}).",
        "\n".join(["| | |", "| --- | --- |", *(f"| {title} | {value} |" for title, value in rows)]),
    ]


# -- picture -----------------------------------------------------------------------------------------------------------

WIDE, HIGH, LEFT, TOP = 330, 220, 50, 60


def svg(report: Mapping[str, Any]) -> str:
    """Two panels, old and new words: accuracy after each new word, with its interval."""
    found = curves(report)
    width, height = 2 * (WIDE + LEFT) + 40, HIGH + TOP + 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>']  # fmt: skip
    for i, (arm, title) in enumerate(ARMS.items()):
        parts.append(f'<circle cx="{60 + 130 * i}" cy="16" r="4" fill="{COLOURS[arm]}"/>'
                     f'<text x="{68 + 130 * i}" y="20">{html.escape(title)}</text>')  # fmt: skip
    for number, kind in enumerate(("old", "new")):
        parts += _panel(kind, {arm: found[arm][kind] for arm in ARMS}, LEFT + number * (WIDE + LEFT + 10))
    return "\n".join([*parts, "</svg>\n"])


def _panel(kind: str, lines: Mapping[str, list[list[float]]], left: int) -> list[str]:
    def at(word: int, value: float) -> tuple[float, float]:
        return left + word / NEW * WIDE, TOP + (1 - value) * HIGH

    parts = [f'<rect x="{left}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#bbb"/>',
             f'<text x="{left}" y="{TOP - 6}" font-weight="bold">{kind} words</text>']  # fmt: skip
    parts.append(f'<text x="{left + WIDE // 2}" y="{TOP + HIGH + 30}" text-anchor="middle">words learned</text>')
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{left - 6}" y="{at(0, share)[1] + 4:.0f}" text-anchor="end">{100 * share:.0f} %</text>')
    for word in range(0, NEW + 1, 2):
        parts.append(f'<text x="{at(word, 0)[0]:.0f}" y="{TOP + HIGH + 14}" text-anchor="middle">{word}</text>')
    for arm, values in lines.items():
        first = 0 if kind == "old" else 1
        points = [at(first + i, statistics.fmean(row)) for i, row in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[arm]}" stroke-width="1.5"/>')
        for (x, y), row in zip(points, values, strict=True):
            half = half_width(row) * HIGH
            parts.append(f'<line x1="{x:.1f}" y1="{max(y - half, TOP):.1f}" x2="{x:.1f}" '
                         f'y2="{min(y + half, TOP + HIGH):.1f}" stroke="{COLOURS[arm]}" stroke-opacity="0.4"/>'
                         f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLOURS[arm]}"/>')  # fmt: skip
    return parts


__all__ = ["curves", "page", "svg"]
