"""`smidgen demo`: a shipped network meets digits that drifted from those it knows, and learns them in 64 KB of RAM.

The program is demo.smg, made by tools/make_demo.py; digits come from scikit-learn. Every figure is the same on every
machine, except for seconds.
"""

from __future__ import annotations

import json as json_text
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from ..errors import MissingPart
from ..ir import Array
from ..report.arena_picture import arena_picture
from ..terminal import Progress, bytes_text, paint, seconds_text
from ..train import batches
from ..train.history import Epoch, History
from ..train.job import Job
from ..train.load import load

PROGRAM: Final = Path(__file__).with_name("demo.smg")
TORCH: Final = Path(__file__).with_name("demo_torch_memory.json")
LIMIT_BYTES: Final = 65_536
KNOWN_CLASSES: Final = 8
REHEARSED: Final = 400
EPOCHS: Final = 30
PIXELS: Final = 64
SPLIT_SEED: Final = 1

NAMES: Final = {
    "rotated": "rotated", "inverted": "inverted", "unseen": "8 and 9", "drifted": "all drifted", "known": "known",
}  # fmt: skip
KEYS: Final[Mapping[str, str]] = {
    "before": "share of right answers before training: rotated, inverted, unseen, drifted (all three), known",
    "after": "the same after training",
    "samples": "how many digits each part has: of the tests, and `stream` and `rehearsed` to learn from",
    "gained_points": "after minus before on the drifted test digits, in points of a hundred",
    "lost_points": "before minus after on the known test digits",
    "ram_bytes": "state + arena + context + stack, as the plan states it",
    "limit_bytes": "65,536",
    "plan": "state_bytes, arena_bytes, context_bytes, stack_bytes, flash_bytes, batch",
    "epochs": "how often each digit was learned from",
    "stopped": "done, or interrupted by Ctrl-C",
    "steps": "updates done",
    "train_s": "seconds they took",
    "seconds": "the whole demo",
    "torch": "what PyTorch needs for the same step, as benchmarks/torch_step_memory.py recorded it",
}
"""What `smidgen demo --json` prints."""


@dataclass(frozen=True, slots=True)
class Part:
    """x: (n, 1, 8, 8), from -1 to 1; y: (n,), what each shows."""

    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True)
class Digits:
    """No image is in two of pretraining, stream and test. 0–7 upright are known; the rest drifted."""

    pretraining: Part
    stream: Part  # what the device meets: rotated, inverted, and 8 and 9
    known: Part  # from here on for tests
    rotated: Part
    inverted: Part
    unseen: Part

    @property
    def rehearsed(self) -> Part:
        """Known digits that the device keeps, so that it does not forget."""
        return Part(self.pretraining.x[:REHEARSED], self.pretraining.y[:REHEARSED])


def digits() -> Digits:
    """scikit-learn's 1,797 digits: four tenths for pretraining, three to learn from, three for tests."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        help = "pip install 'smidgen[demo]'"
        raise MissingPart("the demo needs scikit-learn for its digits", why=str(error), help=help) from error
    found = load_digits()
    x = (found.images / 8 - 1).astype(np.float32)[:, None]
    y = found.target.astype(np.int32)
    order = batches.order(SPLIT_SEED, 0, len(y))
    x, y, tenth, known = x[order], y[order], np.arange(len(y)) % 10, y[order] < KNOWN_CLASSES

    def part(chosen: Array) -> Part:
        return Part(x[chosen], y[chosen])

    learn, test = (tenth >= 4) & (tenth < 7), tenth >= 7
    half = np.cumsum(learn & known) % 2 == 0
    met = [
        rotated(part(learn & known & half)), inverted(part(learn & known & ~half)), part(learn & ~known),
    ]  # fmt: skip
    upright = part(test & known)
    return Digits(
        pretraining=part((tenth < 4) & known),
        stream=joined(*met),
        known=upright,
        rotated=rotated(upright),
        inverted=inverted(upright),
        unseen=part(test & ~known),
    )


def rotated(part: Part) -> Part:
    return Part(np.ascontiguousarray(np.rot90(part.x, 1, (2, 3))), part.y)


def inverted(part: Part) -> Part:
    return Part(-part.x, part.y)


def joined(*parts: Part) -> Part:
    return Part(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))


PLAN_KEYS: Final = ("state_bytes", "arena_bytes", "context_bytes", "stack_bytes", "flash_bytes", "batch")


def run(
    *, json: bool = False, stream: TextIO | None = None, colour: bool = False, width: int = 100, epochs: int = EPOCHS
) -> dict[str, Any]:
    """The whole demo, told on `stream` (default: standard output) unless `json`; returns what KEYS describes."""
    started = time.monotonic()
    data, job = digits(), load(PROGRAM, kernels="exact")
    style = Style(colour, width)

    def say(text: str) -> None:
        if not json:
            print(text, file=stream, flush=True)

    say(introduction(job, data, style))
    before = measured(job, data)
    right = f"{before['drifted']:.1%} of drifted digits are read right, {before['known']:.1%} of known ones"
    say(style.entry("before", right))
    history = learn(job, joined(data.stream, data.rehearsed), epochs, show=not json)
    after = measured(job, data)
    figures: dict[str, Any] = {
        "before": before,
        "after": after,
        "samples": {**{k: len(p) for k, p in tests(data).items()}, "stream": len(data.stream),
                    "rehearsed": len(data.rehearsed)},
        "gained_points": round(100 * (after["drifted"] - before["drifted"]), 1),
        "lost_points": round(100 * (before["known"] - after["known"]), 1),
        "ram_bytes": job.plan.ram_bytes,
        "limit_bytes": LIMIT_BYTES,
        "plan": {k: getattr(job.plan, k) for k in PLAN_KEYS},
        "epochs": len(history.epochs),
        "stopped": history.stopped,
        "steps": history.steps,
        "train_s": round(history.seconds, 2),
        "torch": json_text.loads(TORCH.read_text()),
        "seconds": round(time.monotonic() - started, 2),
    }  # fmt: skip
    say(results(figures, style))
    say(arena(job, style))
    say(memory(figures, style))
    return figures


def tests(data: Digits) -> dict[str, Part]:
    drift = {"rotated": data.rotated, "inverted": data.inverted, "unseen": data.unseen}
    return {**drift, "drifted": joined(*drift.values()), "known": data.known}


def measured(job: Job, data: Digits) -> dict[str, float]:
    """Share of right answers by test."""
    return {name: round(job.evaluate(part.x, part.y)["accuracy"], 4) for name, part in tests(data).items()}


def learn(job: Job, lesson: Part, epochs: int, show: bool) -> History:
    """One bar for all epochs: each takes too short for a bar of its own."""
    with Progress("training", epochs) as bar:

        def on_epoch(epoch: Epoch) -> None:
            if show:
                bar.advance(1, f"loss {epoch.loss:.3f}")

        return job.fit(lesson.x, lesson.y, epochs=epochs, schedule="linear", progress=False, on_epoch=on_epoch)


# -- text ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Style:
    colour: bool
    width: int

    def __call__(self, text: str, *styles: str) -> str:
        return paint(text, *styles, colour=self.colour)

    def wrapped(self, text: str, indent: int = 0) -> list[str]:
        """Lines that fit; a space that must not be broken is given as ~."""
        lines = textwrap.wrap(text, max(40, self.width) - indent, break_on_hyphens=False)
        return [line.replace("~", " ") for line in lines]

    def entry(self, name: str, text: str) -> str:
        """`name` in a column of its own, `text` beside it in as many lines as it takes."""
        first, *rest = self.wrapped(text, 10)
        gap = " " * (10 - len(name))
        return "\n".join([f"{self(name, 'bold')}{gap}{first}", *(" " * 10 + line for line in rest)])


def introduction(job: Job, data: Digits, style: Style) -> str:
    plan = job.plan
    title = f"A network of {plan.model_parameters:,} weights learns on the device, in {plan.ram_bytes:,} bytes of RAM"
    story = f"It was pretrained on upright digits from 0 to {KNOWN_CLASSES - 1}. What it meets now has drifted:"
    return "\n".join([
        *(style(line, "bold") for line in style.wrapped(title)),
        *style.wrapped(story),
        "",
        *gallery(data, style),
        "",
    ])  # fmt: skip


def gallery(data: Digits, style: Style) -> list[str]:
    """Images of each kind, side by side; a character is two pixels, one above the other."""
    each = 2 if style.width >= 80 else 1
    same = (4, 5)[:each]
    groups = {
        "known": (data.known, same), "rotated": (data.rotated, same), "inverted": (data.inverted, same),
        "never seen": (data.unseen, (8, 9)[:each]),
    }  # fmt: skip
    heads, rows = "  ", ["  "] * 4
    for title, (part, classes) in groups.items():
        heads += title.ljust(9 * each + 2)
        for image in (part.x[part.y == k][0, 0] > 0 for k in classes):
            cells = image[0::2].astype(int) * 2 + image[1::2]
            rows = [row + "".join(" ▄▀█"[c] for c in line) + " " for row, line in zip(rows, cells, strict=True)]
        rows = [row + "  " for row in rows]
    return [style(heads.rstrip(), "dim"), *(row.rstrip() for row in rows)]


def results(figures: Mapping[str, Any], style: Style) -> str:
    samples = figures["samples"]
    kept = bytes_text(samples["rehearsed"] * PIXELS)
    what = f"{samples['stream']} drifted digits and {samples['rehearsed']} known ones, {figures['epochs']} times each"
    why = f"The known ones wait in {kept} of flash, so that they are not forgotten."
    stopped = " Stopped by Ctrl-C." if figures["stopped"] == "interrupted" else ""
    steps = f"{figures['steps']:,} steps of {figures['plan']['batch']}"
    took = style.entry("took", seconds_text(figures["train_s"]))  # on its own: its length must not move words
    change = {"drifted": figures["gained_points"], "known": 0.0 - figures["lost_points"]}
    table = []
    for key, name in NAMES.items():
        row = f"{name:12}{figures['before'][key]:8.1%}{figures['after'][key]:9.1%}"
        row += f"{change[key]:+8.1f} points" if key in change else ""
        table.append(f"  {style(row, 'bold', 'green') if key == 'drifted' else row}")
    head = style(f"{'read right':12}{'before':>8}{'after':>9}", "dim")
    return "\n".join([style.entry("training", f"{steps}: {what}.{stopped} {why}"), took, "", f"  {head}", *table])


def arena(job: Job, style: Style) -> str:
    size = job.plan.arena_by_entry["train"]
    picture = arena_picture(job.plan.facts.entries["train"], size, width=style.width, height=8, colour=style.colour)
    return f"\n{style.entry('arena', f'where the {size:,} bytes go during one step')}\n{picture}\n"


def memory(figures: Mapping[str, Any], style: Style) -> str:
    plan, torch = figures["plan"], figures["torch"]
    parts = {"state": "weights and momentum", "arena": "arena", "context": "context", "stack": "stack"}
    where = ", ".join(f"{text}~{plan[f'{key}_bytes']:,}" for key, text in parts.items())
    tensors = f"{torch['tensor_bytes']:,} bytes of tensors alone for the same step"
    process = f"{bytes_text(torch['process_bytes']['min'])} as a process, Python included"
    recorded = f"version {torch['torch']}, {torch['date']}, {torch['command']}"
    return "\n".join([
        style.entry("RAM", f"{figures['ram_bytes']:,} of {figures['limit_bytes']:,} bytes: {where}"),
        style.entry("PyTorch", f"{tensors}; {process} ({recorded})"),
        style.entry("next", "your own model: smidgen plan model.py:build --input 8x3x32x32"),
    ])  # fmt: skip
