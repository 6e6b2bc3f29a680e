"""Only biases learn: additive parameters of layers and norms. No activation has to be kept for them."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Graph
from .contract import Context, Method, Update
from .registry import register
from .uses import uses


@register
class Bias(Method):
    name, doc = "bias", "biases of layers and shifts of norms"
    keeps = "none; one bit an element where an activation function asks for it"
    costs = "gradients back to the first bias"
    after = "Cai et al. 2020 (TinyTL)"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return [Update(u.param) for u in uses(graph) if u.role in ("bias", "shift")]
