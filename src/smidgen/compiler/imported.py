"""A model as its importer leaves it: graphs for training and inference, and what the user's model calls its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Graph, Shape


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
