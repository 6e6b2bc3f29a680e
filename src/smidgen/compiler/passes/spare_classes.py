"""Spare classes: the last layer gets rows that nobody uses yet, and their scores a mask of −1e30, which is state.

exp(−1e30) is 0 in every precision, so a masked class has probability 0 and gradient 0: the numbers of the others are
the same bits as without it. A class is added at run time by writing 0 into the mask.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ... import ops
from ...errors import BadOption
from ...ir import CLASS_NAMES, CLASSES, DType, Graph, Node, Role, Tensor

if TYPE_CHECKING:
    from ..imported import Imported

MASKED: Final = -1e30
NAME_BYTES: Final = 24  # of an added class, with the zero at the end


@dataclass(frozen=True, slots=True)
class Head:
    """The layer that was made wider; `outputs` are the model's outputs that have a column for each class."""

    known: int
    spare: int
    weight: str
    bias: str | None
    outputs: tuple[str, ...]
    rows: tuple[str, ...] = ()  # parameters that a method added, with a row for each class

    def to_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {"known": self.known, "spare": self.spare, "weight": self.weight, "bias": self.bias,
                "outputs": list(self.outputs), "names": list(names),
                **({"rows": list(self.rows)} if self.rows else {})}  # fmt: skip


def add_spare(imported: Imported, spare: int) -> tuple[Imported, Head]:
    """The same model with `spare` more classes, all masked."""
    weight, bias = _head(imported.train)
    known = int(imported.train[weight].shape[0])  # type: ignore[arg-type]
    outputs: list[str] = []
    train, infer = (_widened(g, weight, bias, spare, outputs) for g in (imported.train, imported.infer))
    evaluate = imported.evaluate and _widened(imported.evaluate, weight, bias, spare, outputs)
    parameters = tuple(
        replace(p, shape=(p.shape[0] + spare, *p.shape[1:])) if p.name in (weight, bias) else p
        for p in imported.parameters
    )
    head = Head(known, spare, weight, bias, tuple(dict.fromkeys(outputs)))
    return replace(imported, parameters=parameters, train=train, infer=infer, evaluate=evaluate), head


def _refused(why: str) -> BadOption:
    help = "end the model with nn.Linear, loss='cross_entropy', no label smoothing and no class weights"
    return BadOption("spare_classes does not work for this model", why=why, help=help)


def _compares_labels(node: Node) -> bool:
    loss = ops.get(node.op).loss
    return loss is not None and loss.target == "classes"


def _head(train: Graph) -> tuple[str, str | None]:
    """Weight and bias of the linear layer whose output is compared with labels."""
    losses = [node for node in train.nodes if _compares_labels(node)]
    if len(losses) != 1:
        raise _refused("the loss does not compare scores with labels, or does so more than once")
    if len(losses[0].ins) > 2 or losses[0].attrs.get("label_smoothing"):
        raise _refused("class weights and label smoothing count classes that are not there yet")
    made, name = train.producer(), losses[0].ins[0]
    while name in made and ops.get(made[name].op).masks:
        name = made[name].ins[0]
    node = made.get(name)
    if node is None or not ops.get(node.op).widens or train[node.ins[1]].role is not Role.PARAM:
        raise _refused(f"the scores come from '{node.op if node else 'outside'}', not from a linear layer")
    return node.ins[1], node.ins[2] if len(node.ins) > 2 else None


def _widened(graph: Graph, weight: str, bias: str | None, spare: int, outputs: list[str]) -> Graph:
    readers = [node for node in graph.nodes if weight in node.ins or (bias and bias in node.ins)]
    if len(readers) != 1 or not ops.get(readers[0].op).widens:
        raise _refused(f"'{weight}' is used at several places")
    tensors, data = dict(graph.tensors), dict(graph.data)
    for name in (weight, bias):
        if name:
            old = tensors[name]
            tensors[name] = replace(old, shape=(int(old.shape[0]) + spare, *old.shape[1:]))  # type: ignore[arg-type]
            data[name] = np.concatenate([data[name], np.zeros((spare, *np.shape(data[name])[1:]))])
    classes = int(tensors[weight].shape[0])  # type: ignore[arg-type]
    tensors[CLASSES] = Tensor(CLASSES, (classes,), DType.F32, Role.SETTING)
    data[CLASSES] = np.where(np.arange(classes) < classes - spare, 0.0, MASKED)
    scores = readers[0].outs[0]
    masked = f"{scores}.masked"
    tensors[masked] = tensors[scores]
    wide, nodes = {scores}, []
    for node in graph.nodes:
        if node is not readers[0]:
            node = node.with_(ins=tuple(masked if i == scores else i for i in node.ins))
        nodes.append(_typed(node, tensors, wide | {masked}, outputs))
        if wide & set(node.ins) or masked in node.ins:
            wide.update(node.outs)
        if node is readers[0]:
            tensors[masked] = replace(tensors[scores], name=masked)
            nodes.append(Node("add", (scores, CLASSES), (masked,), {}, node.stage, node.src))
    return graph.with_(tensors=tensors, nodes=tuple(nodes), data=data)


def _typed(node: Node, tensors: dict[str, Tensor], wide: set[str], outputs: list[str]) -> Node:
    """The node, its results with the shapes that follow from wider inputs."""
    record, reads = ops.get(node.op), bool(wide & set(node.ins))
    if not record.widens and not reads:
        return node
    # A masked class stays at probability 0 in whatever reads the scores.
    if reads and not (record.masks or record.border == "out" or _compares_labels(node)):
        raise _refused(f"'{node.op}' reads the scores")
    specs = record.infer([tensors[i] for i in node.ins], node.attrs)
    for out, (shape, dtype) in zip(node.outs, specs, strict=True):
        tensors[out] = replace(tensors[out], shape=tuple(shape), dtype=dtype)
        if record.border == "out" and len(shape) > 1:
            outputs.append(out)
    return node


def with_names(graph: Graph, head: Head) -> Graph:
    """With room for the names of added classes. No instruction reads it, so it comes after all passes."""
    names = Tensor(CLASS_NAMES, (head.spare, NAME_BYTES), DType.U8, Role.SETTING)
    empty = np.zeros((head.spare, NAME_BYTES), np.uint8)
    return graph.with_(tensors={**graph.tensors, CLASS_NAMES: names}, data={**graph.data, CLASS_NAMES: empty})


def check_head(head: Head, learns: Collection[str], names: tuple[str, ...]) -> None:
    """A class that cannot be learned need not be added."""
    if not {head.weight, *head.rows} & set(learns):
        raise BadOption("spare classes cannot be learned", why=f"'{head.weight}' does not learn with this method",
                        help="method='last_layer', or another one that trains the last layer")  # fmt: skip
    if names and len(names) != head.known:
        raise BadOption(f"{len(names)} class_names for {head.known} classes", help="one name for each class")
