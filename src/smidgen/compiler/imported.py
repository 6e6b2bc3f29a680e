"""A model as its importer leaves it: graphs for training and inference, and what the user's model calls its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..ir import Array, Graph, Shape


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or buffer as the user's model has it; `aliases` are further names of the same tensor."""

    name: str
    module: str
    shape: tuple[int, ...]
    requires_grad: bool
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    train: Graph
    infer: Graph
    loss: str  # the scalar in `train`
    parameters: tuple[Parameter, ...]  # in the order of the model
    buffers: tuple[Parameter, ...]
    output_shapes: tuple[Shape, ...]
    batch: int  # of the example
    evaluate: Graph | None = None  # loss and outputs of `infer`; None if the loss is not made for these outputs

    def with_values(self, values: Mapping[str, Array]) -> Imported:
        """With these values of parameters and buffers, in the model's own layout; itself if they are what it has."""
        graphs = [graph for graph in (self.train, self.infer, self.evaluate) if graph is not None]
        new = {
            name: np.asarray(value, np.float64)
            for name, value in values.items()
            if any(not np.array_equal(np.float32(g.data[name]), value) for g in graphs if name in g.data)
        }

        def changed(graph: Graph) -> Graph:
            return graph.with_(data={name: new.get(name, value) for name, value in graph.data.items()})

        evaluate = self.evaluate and changed(self.evaluate)
        return replace(self, train=changed(self.train), infer=changed(self.infer), evaluate=evaluate) if new else self
