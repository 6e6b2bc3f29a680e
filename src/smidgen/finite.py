"""When training leaves the numbers: which weights are not finite, and how large the gradients were that led there.

A step's gradient is mostly never stored, so it is read off a replayed step, from what the update made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .ir import LR, Array
from .metrics import LossFacts
from .state import State

NAMED = 3  # gradients in a message


def all_finite(state: State) -> bool:
    """True only if they are; False also for an optimizer's tensor, or integers that look like NaN."""
    paged = [name for name, fact in state.facts.items() if fact.get("region") == "page"]
    parts = [state.memory.view(np.float32), *(state.view(name) for name in paged)]
    return all(bool(np.isfinite(part).all()) for part in parts)


def not_finite(state: State) -> list[str]:
    """Parameters and statistics that hold NaN or infinity."""
    return [
        name
        for name, fact in state.facts.items()
        if fact["role"] in ("param", "stat") and not bool(np.isfinite(state.view(name)).all())
    ]


def gradients(state: State, train: Callable[[], object], optimizer: Mapping[str, Any]) -> dict[str, float]:
    """Parameter → largest magnitude of its gradient in the step that `train` does, weight decay included, as the
    optimizer saw it (after clipping). The state is left as it was; `optimizer` has the numbers of the optimizer."""
    before = state.copy()
    starts = {p: state.view(p).copy() for p, f in state.facts.items() if f["role"] == "param"}
    slots = {f["owner"]: name for name, f in state.facts.items() if f.get("slot") in ("momentum", "exp_avg")}
    keeps = 1 - float(optimizer.get("beta1", 0.0))  # of the gradient, in the optimizer's average
    try:
        for slot in slots.values():
            state.put(slot, 0)
        if not slots:
            state.view(LR)[...] = 1
        train()
        with np.errstate(all="ignore"):
            return {
                p: _largest(state.view(slots[p]) / keeps if p in slots else start - state.view(p))
                for p, start in starts.items()
            }
    finally:
        state.set_all(before)


def _largest(values: Array) -> float:
    """NaN if there is one."""
    return float(np.abs(values).max(initial=0.0))


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
