"""Only biases learn: additive parameters of layers and norms. No activation has to be kept for them."""

from __future__ import annotations

from .registry import Update, register
from .uses import uses

register("bias", "biases of layers and shifts of norms",
         lambda graph, k: [Update(u.param) for u in uses(graph) if u.role in ("bias", "shift")])  # fmt: skip
