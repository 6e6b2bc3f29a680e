"""What a plan can be drawn from: what each instruction of an entry point is, and where every tensor of the arena lives
meanwhile; data and its JSON only.

Time is the position in the program's code; in a loop over samples it is one iteration. No two spans alive at the same
time share a byte. In JSON all names are numbers of one table of strings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .lazy_json import whole

KINDS: Final = ("saved", "mask", "activation", "gradient", "input", "accumulator", "scratch", "rows")
"""saved: made in the forward pass, read in the backward pass; mask: the same, as bits or positions; rows: the few rows
of a map that a stream has at a time."""
STAGES: Final = ("forward", "backward", "update", "io")
INPUT, OUTPUT, LOOP, MODEL, OPTIMIZER = "(input)", "(output)", "(loop)", "(model)", "(optimizer)"
REPLAYED, STREAM = "(replay)", "(stream)"
"""Layers that are no module of the user's; (model) is what the model's own forward does."""
MOST_BYTES: Final = 2**31

_WORDS: Final = (
    (re.compile(r"(.*)>(.*)"), "{} over {}"),  # while it is written over it, row by row
    (re.compile(r"(.*):acc"), "summed gradient of {}"),
    (re.compile(r"(.*)':gradient"), "gradient of {}"),
    (re.compile(r"(.*):sum"), "sum of {}"),
    (re.compile(r"(.*)@1"), "{} of one sample"),
    (re.compile(r"(.*)~\d+"), "{}, recomputed"),
    (re.compile(r"(.*)\.bits"), "signs of {}"),
    (re.compile(r"(.*)'"), "{}, updated"),
)


def tensor_text(name: str) -> str:
    """A tensor's name as people read it: what the compiler has put behind the user's own in words."""
    for pattern, text in _WORDS:
        if found := pattern.fullmatch(name):
            return text.format(*map(tensor_text, found.groups()))
    return name


@dataclass(frozen=True, slots=True)
class Moment:
    """One instruction. `layer` is the module path in the user's model, `macs` those of a full batch."""

    op: str
    layer: str
    stage: str
    macs: int


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor in the arena: `bytes` at `offset` from instruction `first` to `last`, both included.

    `made` is the instruction that writes it. What a loop gathers has its place from the loop's start.
    """

    tensor: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int
    made: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One entry point. `loop` is the position of the loop over samples and the number of instructions in it."""

    align: int
    loop: tuple[int, int] | None
    moments: tuple[Moment, ...]
    spans: tuple[Span, ...]

    def live(self) -> list[int]:
        """Bytes in use at each instruction, every tensor rounded up to the alignment."""
        change = [0] * (len(self.moments) + 1)
        for span in self.spans:
            count = -(-span.bytes // self.align) * self.align
            change[span.first] += count
            change[span.last + 1] -= count
        return list(itertools.accumulate(change[:-1]))

    def peak(self) -> tuple[int, int]:
        """The first instruction with the most bytes in use, and how many."""
        live = self.live()
        most = max(live, default=0)
        return (live.index(most) if live else 0), most

    def alive(self, moment: int) -> list[Span]:
        """The tensors in use at an instruction, largest first."""
        found = [s for s in self.spans if s.first <= moment <= s.last]
        return sorted(found, key=lambda s: (-s.bytes, s.offset))

    def maker(self, span: Span) -> Moment:
        return self.moments[span.made]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that outlives a step: role const is in flash, all others (param, optim, stat, setting) are state."""

    name: str
    role: str
    layer: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan can be drawn from."""

    entries: Mapping[str, Timeline] = field(default_factory=dict)
    stored: tuple[Stored, ...] = ()

    def to_json(self) -> dict[str, Any]:
        table: dict[str, int] = {}

        def name(text: str) -> int:
            return table.setdefault(text, len(table))

        entries = {
            entry: {
                "align": t.align,
                "loop": None if t.loop is None else list(t.loop),
                "moments": [[name(m.op), name(m.layer), STAGES.index(m.stage), m.macs] for m in t.moments],
                "spans": [
                    [name(s.tensor), KINDS.index(s.kind), s.offset, s.bytes, s.first, s.last, s.made] for s in t.spans
                ],
            }
            for entry, t in self.entries.items()
        }
        stored = [[name(s.name), name(s.role), name(s.layer), s.bytes] for s in self.stored]
        return {"strings": list(table), "entries": entries, "stored": stored}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Facts:
        """Raises ValueError, TypeError or KeyError unless `data` is what `to_json` could have written."""
        strings = [_text(s) for s in _items(data["strings"])]
        entries = {_text(entry): _timeline(t, strings) for entry, t in _object(data["entries"]).items()}
        stored = [
            Stored(_pick(strings, n), _pick(strings, role), _pick(strings, layer), whole(count, MOST_BYTES))
            for n, role, layer, count in _rows(data["stored"], 4)
        ]
        return Facts(entries, tuple(stored))


# -- from JSON that nobody has checked ----------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a name")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} is not a list")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is not an object")
    return value


def _rows(value: Any, columns: int) -> list[list[Any]]:
    rows = [_items(row) for row in _items(value)]
    if any(len(row) != columns for row in rows):
        raise ValueError(f"a row has not {columns} columns")
    return rows


def _pick(table: Sequence[str], number: Any) -> str:
    return table[whole(number, len(table))]


def _timeline(data: Any, strings: Sequence[str]) -> Timeline:
    data = _object(data)
    moments = tuple(
        Moment(_pick(strings, op), _pick(strings, layer), _pick(STAGES, stage), whole(macs))
        for op, layer, stage, macs in _rows(data["moments"], 4)
    )
    count = len(moments)
    spans = []
    for tensor, kind, offset, size, first, last, made in _rows(data["spans"], 7):
        whole(last, count, whole(first, count))
        span = Span(_pick(strings, tensor), _pick(KINDS, kind), whole(offset, MOST_BYTES), whole(size, MOST_BYTES),
                    first, last, whole(made, count))  # fmt: skip
        spans.append(span)
    loop = data["loop"]
    if loop is not None:
        head, body = _items(loop)
        loop = (whole(head, count), whole(body, count - head, 1))
    return Timeline(whole(data["align"], 65, 1), loop, moments, tuple(spans))
