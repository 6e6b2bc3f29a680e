"""Turn gradients into learning: the entries `train`, and `zero`, `grad`, `apply` for batches in several parts.

An update node consumes W₀ and yields W₁ in the same slot, after the last reader of W₀. Wherever the gradient comes
from a weight-gradient op and nothing else needs it, gradient and update become one op and the gradient never exists;
except where the gradient is small and waiting for the update would keep something large alive (gamma of a norm).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..build import Builder
from ..ir import COUNTER, LR, Graph, Node, Role
from ..optimizers import Optimizer

SMALL = 4  # a gradient this many times smaller than what it would keep alive is kept itself


@dataclass(frozen=True, slots=True)
class Pending:
    """An update to be placed once the last reader of its parameter is known."""

    param: str
    node: Node


def train_entry(
    graph: Graph, grads: Mapping[str, str], optimizer: Optimizer, seed: int = 0, fuse: bool = True
) -> Graph:
    """Forward, backward and update of one batch, interleaved."""
    b = Builder(graph)
    b.stage = "update"
    _settings(b, optimizer, seed)
    if optimizer.clip_norm is not None:
        grads = _clipped(b, grads, optimizer.clip_norm)
    updates = []
    for param, grad in grads.items():
        sources = _optimizer_inputs(b, param, optimizer)
        fused = _fused(b, param, grad, optimizer.op, sources, optimizer.attrs) if fuse else None
        updates.append(fused or _plain(b, param, grad, optimizer, sources))
    return _with_updates(b, updates)


def grad_entry(graph: Graph, grads: Mapping[str, str], seed: int = 0) -> Graph:
    """Forward and backward of one part of a batch; gradients are added to accumulators."""
    b = Builder(graph)
    if COUNTER in b.tensors:
        b.data[COUNTER] = np.array([seed, 0], np.int32)
    b.stage = "update"
    updates = []
    for param, grad in grads.items():
        acc = b.tensor(accumulator(param), b[param].shape, role=Role.ACCUM)
        node = _fused(b, param, grad, "acc", (acc,), {})
        updates.append(node or Pending(param, _update(b, "accumulate", (acc, grad), {})))
    return _with_updates(b, updates, counts=False)


def apply_entry(graph: Graph, grads: Mapping[str, str], optimizer: Optimizer, seed: int = 0) -> Graph:
    """The update from accumulated gradients."""
    b = Builder()
    b.stage = "update"
    b.layouts.update(graph.layouts)
    sums = {}
    for param in grads:
        b.stored(param, graph.data[param], Role.PARAM)
        sums[param] = b.tensor(accumulator(param), graph[param].shape, role=Role.ACCUM)
    _settings(b, optimizer, seed)
    if optimizer.clip_norm is not None:
        sums = _clipped(b, sums, optimizer.clip_norm)
    updates = [_plain(b, p, g, optimizer, _optimizer_inputs(b, p, optimizer)) for p, g in sums.items()]
    return _with_updates(b, updates)


def zero_entry(graph: Graph, grads: Mapping[str, str]) -> Graph:
    """Clears the accumulators before the first part of a batch."""
    b = Builder()
    b.stage = "update"
    for param in grads:
        acc = b.tensor(accumulator(param), graph[param].shape, role=Role.ACCUM)
        b.append(_update(b, "zero", (acc,), {}))
    return b.graph()


def accumulator(param: str) -> str:
    return f"{param}:acc"


def _settings(b: Builder, optimizer: Optimizer, seed: int) -> None:
    b.stored(LR, np.array(optimizer.lr, np.float64), Role.SETTING)
    start = np.array([seed, 0], np.int32)
    if COUNTER not in b.tensors:
        b.stored(COUNTER, start, Role.SETTING)
    b.data[COUNTER] = start  # dropout brings the counter along, but does not know the seed


def _optimizer_inputs(b: Builder, param: str, optimizer: Optimizer) -> tuple[str, ...]:
    shape = b.data[param].shape
    slots = [b.stored(f"{param}:{slot}", np.zeros(shape), Role.OPTIM) for slot in optimizer.slots]
    return (param, *slots, LR, *((COUNTER,) if optimizer.needs_counter else ()))


def _update(b: Builder, op: str, ins: tuple[str, ...], attrs: Mapping[str, object], src: str = "") -> Node:
    """A node whose outputs take over the memory and role of the inputs they share."""
    record = ops.get(op)
    specs = record.infer([b[i] for i in ins], attrs)
    outs = []
    for k, (shape, dtype) in enumerate(specs):
        source = ins[record.shares[k]]
        outs.append(b.tensor(f"{source}'", shape, dtype, b[source].role))
    return Node(op, ins, tuple(outs), attrs, "update", src)


def _fused(
    b: Builder, param: str, grad: str, kind: str, sources: tuple[str, ...], attrs: Mapping[str, object]
) -> Pending | None:
    """The weight-gradient node joined with its consumer, if the gradient has no other reader and fits as it is."""
    made = [node for node in b.nodes if grad in node.outs]
    readers = [node for node in b.nodes if grad in node.ins]
    if len(made) != 1 or readers or not ops.get(made[0].op).sink:
        return None
    if b[grad].shape != b[param].shape:
        return None
    source = made[0]
    if kind != "acc" and _holds_back(b, source, param):
        return None
    b.nodes.remove(source)
    node = _update(b, f"{source.op}_{kind}", (*source.ins, *sources), {**source.attrs, **attrs}, source.src)
    return Pending(param, node)


def _holds_back(b: Builder, source: Node, param: str) -> bool:
    """Would the update, which waits for the last reader of its parameter, keep something alive that is larger than the
    gradient? Then the gradient moves to the earliest place instead, and what it reads can die, or be overwritten."""
    views = _views(b)
    made_at = {out: i for i, node in enumerate(b.nodes) for out in node.outs}
    first = max((made_at.get(i, -1) for i in source.ins), default=-1) + 1
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(b.nodes):
        for name in node.ins if node is not source and not ops.get(node.op).is_view else ():
            readers.setdefault(views.get(name, name), []).append(i)
    last = max(readers.get(param, [-1]))
    gradient_bytes = b[source.outs[0]].bytes(1)
    for name in {views.get(i, i) for i in source.ins}:
        waits = first <= last and max(readers.get(name, [-1])) <= last
        if waits and b[name].role is Role.VALUE and b[name].bytes(1) >= SMALL * gradient_bytes:
            b.nodes.remove(source)
            b.nodes.insert(first, source)
            return True
    return False


def _plain(b: Builder, param: str, grad: str, optimizer: Optimizer, sources: tuple[str, ...]) -> Pending:
    ins = (param, grad, *sources[1:])
    return Pending(param, _update(b, optimizer.op, ins, optimizer.attrs))


def _clipped(b: Builder, grads: Mapping[str, str], max_norm: float) -> dict[str, str]:
    """Gradients scaled so that their joint norm is at most `max_norm`: all of them must exist at once."""
    squares = [b.add("sum_squares", g) for g in grads.values()]
    while len(squares) > 1:  # clip_factor takes few operands; sums of squares add up in any grouping
        squares = [*squares[2:], b.add("add", squares[0], squares[1])]
    factor = b.add("clip_factor", squares[0], max_norm=max_norm)
    return {p: b.add("mul", g, factor) for p, g in grads.items()}


def _with_updates(b: Builder, updates: list[Pending], counts: bool = True) -> Graph:
    """Each update as early as its inputs and the last reader of what it overwrites allow; the step is counted last."""
    made_at = {out: i for i, node in enumerate(b.nodes) for out in node.outs}
    views = _views(b)
    after: dict[int, list[Node]] = {}
    for pending in updates:
        record = ops.get(pending.node.op)
        overwritten = {pending.node.ins[i] for i in record.shares.values()}
        position = max((made_at.get(i, -1) for i in pending.node.ins), default=-1)
        for i, node in enumerate(b.nodes):
            if any(views.get(name, name) in overwritten for name in node.ins):
                position = max(position, i)
        after.setdefault(position, []).append(pending.node)
    nodes = list(after.get(-1, ()))
    for i, node in enumerate(b.nodes):
        nodes += [node, *after.get(i, ())]
    if counts:
        nodes.append(_update(b, "count_step", (COUNTER,), {}))
    return b.graph().with_(nodes=tuple(nodes))


def _views(b: Builder) -> dict[str, str]:
    """View → the tensor whose memory it shows."""
    found: dict[str, str] = {}
    for node in b.nodes:
        if node.ins and ops.get(node.op).is_view:
            found[node.outs[0]] = found.get(node.ins[0], node.ins[0])
    return found
