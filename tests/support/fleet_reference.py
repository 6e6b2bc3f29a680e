"""What fleets learn, once more in numpy and in double: a network of two layers, its training, and the rule by which
each published method averages. Shares no code with smidgen.fleet but the order of samples."""

from __future__ import annotations

import numpy as np

from smidgen.fleet.client import round_seed
from smidgen.train.batches import order

Weights = dict[str, np.ndarray]
LR = 0.2


def trained(
    w: Weights, x: np.ndarray, y: np.ndarray, *, round: int, part: int, learns: dict[str, np.ndarray] | None = None,
    epochs: int = 2, batch: int = 4, seed: int = 0,
) -> Weights:  # fmt: skip
    """SGD; `learns` has a mask for each weight that learns, all of them if it is None."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    own = round_seed(seed, round, part)
    for epoch in range(epochs):
        which = order(own, epoch, len(y))
        for first in range(0, len(y), batch):
            rows = which[first : first + batch]
            hidden = x[rows] @ w["0.weight"].T + w["0.bias"]
            active = np.maximum(hidden, 0)
            scores = active @ w["2.weight"].T + w["2.bias"]
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(rows)), y[rows]] -= 1
            p /= len(rows)
            back = (p @ w["2.weight"]) * (hidden > 0)
            gradients = {
                "0.weight": back.T @ x[rows],
                "0.bias": back.sum(0),
                "2.weight": p.T @ active,
                "2.bias": p.sum(0),
            }
            for name, g in gradients.items():
                w[name] = w[name] - LR * g * (1 if learns is None else learns.get(name, np.zeros(())))
    return w


def narrow(w: Weights, hidden: int) -> Weights:
    """The first hidden channels."""
    return {"0.weight": w["0.weight"][:hidden], "0.bias": w["0.bias"][:hidden], "2.weight": w["2.weight"][:, :hidden],
            "2.bias": w["2.bias"]}  # fmt: skip


def averaged(before: Weights, updates: list[tuple[float, dict[str, tuple[np.ndarray, np.ndarray]]]]) -> Weights:
    """Each update has, by name, a whole tensor and a mask of what of it is held."""
    found = {}
    for name, old in before.items():
        total = sum(share * value[name][0] * value[name][1] for share, value in updates if name in value)
        weight = sum(share * value[name][1] for share, value in updates if name in value)
        found[name] = np.where(weight > 0, total / np.maximum(weight, 1e-30), old)
    return found


def padded(small: np.ndarray, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As large as the whole one, and where it is held."""
    value, mask = np.zeros(whole.shape), np.zeros(whole.shape)
    where = tuple(slice(0, s) for s in small.shape)
    value[where], mask[where] = small, 1
    return value, mask
