"""What a program costs and why: bytes by region, multiply-accumulates, the decisions with their price, and the facts
that pictures are drawn from. Everything here comes from the compiler; a program file carries it as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ..ir import REPLAY
from .lazy_json import whole
from .timeline import Facts

JsonDict = dict[str, Any]
KINDS: Final = {
    "fuse": "weight gradients go into the optimizer tile by tile",
    "bits": "thresholds keep one bit an element for the backward pass",
    "loop": "a frozen prefix runs sample by sample",
    "stream": "what does not learn runs row by row, so that its maps never exist as a whole",
    "cheap": "activations that cost next to nothing are recomputed, whatever the limit",
    "recompute": "rematerialisation: results are recomputed instead of kept",
    "tile": "gradients inside of blocks exist for some channels at a time",
    "stream_learning": "parts of what learns run row by row, forward and back, and make again what they need",
    "page": "tensors leave RAM for a while",
    "page_state": "state lives in pages, each step fetches and returns it",
    "split": "a step runs in micro-batches, gradients accumulate",
    "statistics": "statistics are those of micro-batches",
    "int8": "constants are stored as int8 with scales",
    "precision": "layers compute in int8",
    "f32": "what of a network in int8 computes in f32, and why",
    "fill": "room that a budget leaves is used to recompute less",
    "evaluate": "an entry that gives the loss without learning",
    "no_evaluate": "without that entry: it would raise RAM",
    "replay": "samples are kept to be learned again",
    "select": "what learns was chosen by scores of the user's samples",
    "rung": "one more plan of a ladder",
    "stopped": "the clock stopped planning",
}
"""Decision → what it means."""
TO_FIT: Final = frozenset({"recompute", "tile", "stream_learning", "page", "page_state", "split", "statistics", "fill"})


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice that made the program smaller: `saves_bytes` of arena at the peak, `adds_s` seconds a step."""

    kind: str  # one of KINDS
    why: str
    saves_bytes: int
    adds_s: float = 0.0
    short: str = ""  # what was done, where that is the beginning of `why`; else all of it

    @property
    def is_to_fit(self) -> bool:
        """Asked for by a limit."""
        return self.kind in TO_FIT


@dataclass(frozen=True, slots=True)
class Cost:
    """Multiply-accumulates of one full batch, per entry point."""

    macs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one run of an entry point with a full batch brings in from PAGE and puts out there."""

    in_bytes: int
    out_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """RAM is exact: state + arena + context + stack, the maximum over all entry points; and, for a job with fast
    kernels, their work memory."""

    state_bytes: int
    arena_bytes: int
    context_bytes: int
    stack_bytes: int
    flash_bytes: int
    lower_bound_bytes: int  # of the arena, for this order of nodes
    arena_by_entry: Mapping[str, int]
    cost: Cost
    decisions: tuple[Decision, ...]
    method: str
    learns: tuple[str, ...]
    batch: int
    step_samples: int = 0  # that the program was made for: more than `batch`: micro-batches; 0: the same
    model_tensors: int = 0  # parameters of the user's model, learning or not; 0: not known
    model_parameters: int = 0  # the numbers in them
    learned_parameters: int = 0
    optimizer: str = ""  # as its constructor is called, without what is usual
    facts: Facts = field(default_factory=Facts)  # empty in files that do not carry them
    work_bytes: int = 0  # of fast kernels and their threads; a matter of the job, so files do not carry it
    device: str = ""  # whose RAM, flash and alignment the plan was made for
    banks: Mapping[str, str] = field(default_factory=dict)  # of that device: stack, state and arena → bank
    slot_bytes: int = 0  # of its flash, kept free for each of two slots of saved state, beside flash_bytes
    page_bytes: int = 0  # size of PAGE; 0: the program does not page
    page_state_bytes: int = 0  # of them, state that outlives a step
    paged: Mapping[str, Traffic] = field(default_factory=dict)  # entry point → what it pages
    step_seconds: float = 0.0  # predicted, of a step of `step_samples`; 0: nobody asked for a price
    step_joules: float = 0.0
    infer_seconds: float = 0.0  # predicted, of an inference of one sample
    infer_joules: float = 0.0
    free_seconds: float = 0.0  # of a step without a limit; 0: there is none
    free_joules: float = 0.0
    objective: str = ""  # of a limit: "time" or "energy"
    least_cost: float = 0.0  # no step within it takes fewer seconds, or joules; 0: nobody asked
    limits: Mapping[str, int] = field(default_factory=dict)  # entry that trains → RAM that was asked for; empty: none
    kernels: str = ""  # that the limits were planned with
    threads: int = 0

    @property
    def step_cost(self) -> float:
        """What a plan minimises, of a step."""
        return self.step_joules if self.objective == "energy" else self.step_seconds

    @property
    def free_cost(self) -> float:
        """The same without a limit; 0: there is none."""
        return self.free_joules if self.objective == "energy" else self.free_seconds

    @property
    def ram_bytes(self) -> int:
        """All of the RAM: state, arena, context, stack, and work memory of fast kernels."""
        return self.state_bytes + self.arena_bytes + self.context_bytes + self.stack_bytes + self.work_bytes

    @property
    def replay_bytes(self) -> int:
        """Of the state: samples that are kept to be learned again."""
        return sum(s.bytes for s in self.facts.stored if s.name == REPLAY)

    @property
    def exact_ram_bytes(self) -> int:
        """With exact kernels, as boards have them and the command line counts: without work memory."""
        return self.ram_bytes - self.work_bytes

    def __str__(self) -> str:
        """RAM in one line, and which kernels it is for."""
        if not self.work_bytes:
            return f"{self.ram_bytes:,} bytes of RAM, with exact kernels"
        return (f"{self.ram_bytes:,} bytes of RAM, with fast kernels: {self.work_bytes:,} of it are their work memory; "
                f"exact kernels take {self.exact_ram_bytes:,}")  # fmt: skip

    def to_json(self) -> JsonDict:
        """As a program file keeps it: without work memory."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SOMETIMES},
            "arena_by_entry": dict(self.arena_by_entry),
            "cost": {"macs": dict(self.cost.macs)},
            "decisions": [{f.name: getattr(d, f.name) for f in fields(d)} for d in self.decisions],
            "learns": list(self.learns),
            "facts": self.facts.to_json(),
            "ram_bytes": self.ram_bytes - self.work_bytes,
            **({"device": self.device, "banks": dict(self.banks)} if self.device else {}),
            **({"slot_bytes": self.slot_bytes} if self.slot_bytes else {}),
            **(self._pages_json() if self.page_bytes else {}),
            **({name: getattr(self, name) for name in _PREDICTED} if self.step_seconds else {}),
            **({name: getattr(self, name) for name in _COMPARED} if self.objective else {}),
            **({name: getattr(self, name) for name in _LIMITED} if self.limits else {}),
        }

    def _pages_json(self) -> JsonDict:
        paged = {entry: [t.in_bytes, t.out_bytes] for entry, t in self.paged.items()}
        return {"page_bytes": self.page_bytes, "page_state_bytes": self.page_state_bytes, "paged": paged}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Raises ValueError, TypeError or KeyError unless `data` is a plan; one without facts is accepted."""
        given = {k: v for k, v in data.items() if k != "ram_bytes"}
        for name in _NUMBERS & set(given):
            whole(given[name], least=1 if name == "batch" else 0)
        given["arena_by_entry"] = _counts(given["arena_by_entry"])
        given["cost"] = Cost(_counts(given["cost"]["macs"]))
        given["decisions"] = tuple(_decision(d) for d in given["decisions"])
        given["learns"] = tuple(given["learns"])
        given["banks"] = dict(given.get("banks", {}))
        given["limits"] = _counts(given.get("limits", {}))
        given["paged"] = {str(e): Traffic(whole(i), whole(o)) for e, (i, o) in given.get("paged", {}).items()}
        texts = (
            given["method"],
            *(given.get(k, "") for k in ("optimizer", "device", "kernels", "objective")),
            *given["learns"],
        )
        if not all(isinstance(text, str) for text in (*texts, *given["banks"], *given["banks"].values())):
            raise ValueError("a method, optimizer, device or parameter has no name")
        for name in {*_PREDICTED, "free_seconds", "free_joules", "least_cost"} & set(given):
            given[name] = _amount(given[name])
        given["facts"] = Facts.from_json(given["facts"]) if "facts" in given else Facts()
        plan = Plan(**given)
        if not set(plan.arena_by_entry) >= set(plan.facts.entries):
            raise ValueError("facts of an entry point that does not exist")
        for entry, timeline in plan.facts.entries.items():
            if any(s.offset + s.bytes > plan.arena_by_entry[entry] for s in timeline.spans):
                raise ValueError(f"a tensor of '{entry}' lies outside the arena")
        return plan


_PREDICTED = ("step_seconds", "step_joules", "infer_seconds", "infer_joules")
_COMPARED = ("free_seconds", "free_joules", "objective", "least_cost")
_LIMITED = ("limits", "kernels", "threads")
_SOMETIMES = (
    "work_bytes", "device", "banks", "slot_bytes", "page_bytes", "page_state_bytes", "paged",
    *_PREDICTED, *_COMPARED, *_LIMITED,
)  # fmt: skip
_NUMBERS = {f.name for f in fields(Plan) if f.type == "int"}


def _counts(data: Any) -> dict[str, int]:
    return {str(name): whole(count) for name, count in data.items()}


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a number of seconds or joules")
    return float(value)


def _decision(data: Mapping[str, Any]) -> Decision:
    found = Decision(**data)
    texts = (found.kind, found.why, found.short)
    if (
        not all(isinstance(text, str) for text in texts)
        or isinstance(found.adds_s, bool)
        or not math.isfinite(found.adds_s)
    ):
        raise ValueError("a decision is not understood")
    whole(found.saves_bytes)
    return found
