"""When training leaves the numbers: which weights are not finite, and how large the gradients were that led there.

A step's gradient is mostly never stored, so it is read off a replayed step, from what the update made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..ir import LR, Array
from ..program.loss import LossFacts
from .state import PART, State

NAMED = 3  # gradients in a message


def all_finite(state: State) -> bool:
    """True only if they are; False also for an optimizer's tensor, or integers that look like NaN."""
    numbers = state.memory.view(np.float32)
    inside = (numbers[first : first + PART] for first in range(0, len(numbers), PART))
    paged = [name for name, fact in state.facts.items() if fact.get("region") == "page"]
    return _finite(inside) and all(_finite(state.parts(name)) for name in paged)


def not_finite(state: State) -> list[str]:
    """Parameters and statistics that hold NaN or infinity."""
    kinds = ("param", "stat")
    return [n for n, fact in state.facts.items() if fact["role"] in kinds and not _finite(state.parts(n))]


def gradients(
    state: State, start: memoryview, train: Callable[[], object], optimizer: Mapping[str, Any]
) -> dict[str, float]:
    """Parameter → largest magnitude of its gradient in the step that `train` does, weight decay included, as the
    optimizer saw it (after clipping). `start` is a copy of the state at hand, which is left as it was; `optimizer` has
    the numbers of the optimizer."""
    slots = {f["owner"]: name for name, f in state.facts.items() if f.get("slot") in ("momentum", "exp_avg")}
    keeps = 1 - float(optimizer.get("beta1", 0.0))  # of the gradient, in the optimizer's average
    before = State(np.frombuffer(start, np.uint8)[: len(state.memory)], state.facts, _Pages(start, len(state.memory)))
    params = [name for name, fact in state.facts.items() if fact["role"] == "param"]
    try:
        for slot in slots.values():
            state.clear(slot)
        if not slots:
            state.view(LR)[...] = 1
        train()
        return {
            p: _largest(state.parts(slots[p])) / keeps
            if p in slots
            else _largest(a - b for a, b in zip(before.parts(p), state.parts(p), strict=True))
            for p in params
        }
    finally:
        state.set_all(start)


class _Pages:
    """Of a copy of the state."""

    def __init__(self, copy: memoryview, at: int) -> None:
        self._data = np.frombuffer(copy, np.uint8)[at:]
        self.page_state_bytes = len(self._data)

    def read_page(self, offset: int, count: int) -> Array:
        return self._data[offset : offset + count]

    def write_page(self, offset: int, data: Array) -> None:
        raise TypeError("a copy is read only")


def _finite(parts: Iterable[Array]) -> bool:
    return all(bool(np.isfinite(part).all()) for part in parts)


def _largest(parts: Iterable[Array]) -> float:
    """Magnitude; NaN if there is one."""
    with np.errstate(all="ignore"):
        return float(np.max([np.abs(part).max(initial=0.0) for part in parts], initial=0.0))


def largest_text(found: Mapping[str, float]) -> str:
    """The largest few, those that are not even finite first."""
    ranked = sorted(found.items(), key=lambda item: -item[1] if np.isfinite(item[1]) else -np.inf)
    said = [f"{name} {value:.2g}" for name, value in ranked[:NAMED]]
    more = f" and {len(ranked) - NAMED} more" if len(ranked) > NAMED else ""
    return ", ".join(said) + more


def nothing_counts(target: Array, facts: LossFacts) -> bool:
    """Are all labels of the batch ignored? A mean over none is NaN."""
    return facts.mean and facts.ignore is not None and bool((target == facts.ignore).all())


__all__ = ["all_finite", "gradients", "largest_text", "not_finite", "nothing_counts"]
