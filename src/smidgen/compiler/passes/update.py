"""Turn gradients into learning: the entries `train`, and `zero`, `grad`, `apply` for batches in several parts.

An update node consumes W₀ and yields W₁ in the same slot, after the last reader of W₀. Wherever the gradient comes
from a weight-gradient op and nothing else needs it, gradient and update become one op and the gradient never exists;
except where the gradient is small and waiting for the update would keep something large alive (gamma of a norm).

Parameters in integers have the same optimizers, which round the change (ops/rounded.py): a factor of their gradient,
and what was folded into them, are numbers of the update.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import ops
from ...ir import COUNTER, LR, DType, Graph, Node, Role
from ...ops.build import Builder
from ...ops.optim import fused_op
from ...program.arrays import MAP, quant_map
from ..optimizers import Optimizer
from .accumulators import Totals, without
from .running_loss import carries, with_running_loss

SMALL = 4  # a gradient this many times smaller than what it would keep alive is kept itself


@dataclass(frozen=True, slots=True)
class Pending:
    """An update to be placed once the last reader of its parameter is known."""

    param: str
    node: Node


def train_entry(
    graph: Graph, grads: Mapping[str, str], optimizer: Optimizer, seed: int = 0, fuse: bool = True,
    rounding: str = "stochastic",
) -> Graph:  # fmt: skip
    """Forward, backward and update of one batch, interleaved. `rounding` is that of parameters in integers."""
    b = Builder(graph)
    b.stage = "update"
    _settings(b, optimizer, seed)
    steps = _Steps(b, optimizer, rounding)
    grads = steps.gradients(grads)
    updates, sinks = [], _Sinks(b)
    for param, grad in grads.items():
        op, sources, attrs = steps.of(param)
        fused = _fused(b, sinks, param, grad, op, sources, attrs) if fuse else None
        updates.append(fused or Pending(param, _update(b, op, (param, grad, *sources[1:]), attrs)))
    sinks.leave()
    return _with_updates(b, updates)


def grad_entry(graph: Graph, sums: Totals, seed: int = 0) -> Graph:
    """Forward and backward of one part of a batch; sums over its samples are added to accumulators. The loss is that of
    all parts so far."""
    b = Builder(without(graph, sums.later))
    if COUNTER in b.tensors:
        b.data[COUNTER] = np.array([seed, 0], np.int32)
    b.stage = "update"
    updates, sinks = [], _Sinks(b)
    for name, accumulates in sums.accumulators.items():
        acc = b.tensor(accumulates, b[name].shape, role=Role.ACCUM)
        node = _fused(b, sinks, acc, name, "acc", (acc,), {})
        updates.append(node or Pending(acc, _update(b, "accumulate", (acc, name), {})))
    sinks.leave()
    with_running_loss(b, sums.loss)
    return _with_updates(b, updates, counts=False)


def apply_entry(
    graph: Graph, grads: Mapping[str, str], sums: Totals, optimizer: Optimizer, seed: int = 0,
    rounding: str = "stochastic",
) -> Graph:  # fmt: skip
    """The update from accumulated sums. The loss is known by then: what it carried is cleared, and has its place here,
    too."""
    b = Builder()
    b.stage = "update"
    b.layouts.update(graph.layouts)
    for param in grads:
        b.tensors[b.stored(param, graph.data[param], Role.PARAM)] = graph[param]
    called = {name: b.tensor(acc, graph[name].shape, role=Role.ACCUM) for name, acc in sums.accumulators.items()}
    for node in sums.later:
        for name in node.ins:
            if name in graph.data and name not in b.tensors:
                b.stored(name, graph.data[name], graph[name].role)
        for out in node.outs:
            b.tensors[out] = graph[out]
        b.append(node.with_(ins=tuple(called.get(i, i) for i in node.ins)))
    _clear_loss(b, sums)
    _settings(b, optimizer, seed)
    steps, updates = _Steps(b, optimizer, rounding), []
    for param, grad in steps.gradients({param: called.get(grad, grad) for param, grad in grads.items()}).items():
        op, sources, attrs = steps.of(param)
        updates.append(Pending(param, _update(b, op, (param, grad, *sources[1:]), attrs)))
    return _with_updates(b, updates)


def zero_entry(graph: Graph, sums: Totals) -> Graph:
    """Clears the accumulators before the first part of a batch."""
    b = Builder()
    b.stage = "update"
    for name, accumulates in sums.accumulators.items():
        acc = b.tensor(accumulates, graph[name].shape, role=Role.ACCUM)
        b.append(_update(b, "zero", (acc,), {}))
    _clear_loss(b, sums)
    return b.graph()


def _clear_loss(b: Builder, sums: Totals) -> None:
    for name, shape in sums.loss.sums.items():
        b.append(_update(b, "zero", (b.tensor(carries(name), shape, role=Role.ACCUM),), {}))


def _settings(b: Builder, optimizer: Optimizer, seed: int) -> None:
    b.stored(LR, np.array(optimizer.lr, np.float64), Role.SETTING)
    start = np.array([seed, 0], np.int32)
    if COUNTER not in b.tensors:
        b.stored(COUNTER, start, Role.SETTING)
    b.data[COUNTER] = start  # dropout brings the counter along, but does not know the seed


class _Steps:
    """The optimizer for each parameter of a graph."""

    def __init__(self, b: Builder, optimizer: Optimizer, rounding: str) -> None:
        self._b, self._optimizer, self._rounding = b, optimizer, rounding
        self._factors: dict[str, float] = {}

    def gradients(self, grads: Mapping[str, str]) -> dict[str, str]:
        """As updates take them: of parameters in integers without a factor, which the update has; clipped."""
        found, nodes = dict(grads), self._b.nodes
        made = {out: node for node in nodes for out in node.outs}
        read = {name for node in nodes for name in node.ins}
        gone: set[str] = set()
        for param, grad in grads.items():
            node = made.get(grad)
            factor = None if node is None else ops.get(node.op).factor
            if node is not None and factor is not None and grad not in read and self._b[param].dtype.is_integer:
                found[param], self._factors[param] = node.ins[0], factor(node.attrs)
                gone.add(grad)
        nodes[:] = [node for node in nodes if not gone.intersection(node.outs)]
        limit = self._optimizer.clip_norm
        return found if limit is None else _clipped(self._b, self._in_users_units(found), found, limit)

    def _in_users_units(self, grads: Mapping[str, str]) -> dict[str, str]:
        """Where they are others: gradients of what norms were folded into, and such without their factor."""
        found = dict(grads)
        for param, grad in grads.items():
            quant, factor = self._b[param].quant, self._factors.get(param, 1.0)
            if quant is not None and (quant.factors or factor != 1.0):
                gain = quant_map(quant)[0].astype(np.float64) * factor
                shape = (-1, *[1] * (len(self._b[param].shape) - 1))
                found[param] = self._b.add("mul", grad, self._b.constant(f"{param}:gain", gain.reshape(shape)))
        return found

    def of(self, param: str) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
        """Op, inputs beside the gradient, attributes."""
        b, optimizer, quant = self._b, self._optimizer, self._b[param].quant
        zeros = np.broadcast_to(np.float64(0), b.data[param].shape)  # takes no memory
        slots = [b.stored(f"{param}:{slot}", zeros, Role.OPTIM) for slot in optimizer.slots]
        if quant is None:
            return optimizer.op, (param, *slots, LR, *((COUNTER,) if optimizer.needs_counter else ())), optimizer.attrs
        table = b.const(f"{param}{MAP}", quant_map(quant))
        own = {"draws": zlib.crc32(param.encode()), "rounding": self._rounding, "factor": self._factors.get(param, 1.0)}
        return f"q{optimizer.op}", (param, *slots, table, LR, COUNTER), {**optimizer.attrs, **own}


def _update(b: Builder, op: str, ins: tuple[str, ...], attrs: Mapping[str, object], src: str = "") -> Node:
    """A node whose outputs take over the memory and role of the inputs they share."""
    record = ops.get(op)
    specs = record.infer([b[i] for i in ins], attrs)
    outs = []
    for k, (shape, dtype) in enumerate(specs):
        source = ins[record.shares[k]]
        outs.append(b.tensor(f"{source}'", shape, dtype, b[source].role))
    return Node(op, ins, tuple(outs), attrs, "update", src)


class _Sinks:
    """Nodes whose only result is a weight gradient that nobody reads; those that are taken leave the graph, and those
    that must not wait for their update move to the earliest place."""

    def __init__(self, b: Builder) -> None:
        self._b, self._taken, self._early = b, set[str](), set[str]()
        self._views = _views(b)
        self._made_at = {out: i for i, node in enumerate(b.nodes) for out in node.outs}
        self._readers: dict[str, list[int]] = {}
        for i, node in enumerate(b.nodes):
            for name in () if ops.get(node.op).is_view else node.ins:
                self._readers.setdefault(self._views.get(name, name), []).append(i)
        read = {name for node in b.nodes for name in node.ins}
        self._made = {
            node.outs[0]: node
            for node in b.nodes
            if len(node.outs) == 1 and node.outs[0] not in read and _is_sink(node)
        }

    def get(self, grad: str) -> Node | None:
        return self._made.get(grad)

    def made(self, grad: str) -> Node:
        return self._made[grad]

    def take(self, grad: str) -> Node:
        self._taken.add(grad)
        return self._made.pop(grad)

    def holds_back(self, grad: str, param: str) -> bool:
        """Would the update, which waits for the last reader of its parameter, keep something alive that is larger than
        the gradient? Then the gradient is computed as early as it can, and what it reads can die, or be overwritten."""
        source, own = self._made[grad], self._made_at[grad]
        last = max(self._readers.get(param, [-1]))
        if self._first(source) > last:
            return False
        for name in {self._views.get(i, i) for i in source.ins}:
            others = max((i for i in self._readers[name] if i != own), default=-1)
            large = self._b[name].bytes(1) >= SMALL * self._b[grad].bytes(1)
            if others <= last and large and self._b[name].role is Role.VALUE:
                self._early.add(grad)
                return True
        return False

    def _first(self, node: Node) -> int:
        return max((self._made_at.get(i, -1) for i in node.ins), default=-1) + 1

    def leave(self) -> None:
        early: dict[int, list[Node]] = {}
        for grad in self._early:
            node = self._made[grad]
            early.setdefault(self._first(node), []).append(node)
        nodes: list[Node] = []
        gone = self._taken | self._early
        for i, node in enumerate(self._b.nodes):
            nodes += sorted(early.get(i, ()), key=lambda n: self._made_at[n.outs[0]])
            if not gone.intersection(node.outs):
                nodes.append(node)
        self._b.nodes[:] = nodes


def _fused(
    b: Builder,
    sinks: _Sinks,
    param: str,
    grad: str,
    kind: str,
    sources: tuple[str, ...],
    attrs: Mapping[str, object],
) -> Pending | None:
    """The weight-gradient node joined with its consumer, if the gradient has no other reader and fits as it is."""
    if sinks.get(grad) is None or b[grad].shape != b[param].shape:
        return None
    if kind != "acc" and sinks.holds_back(grad, param):
        return None
    if b[param].dtype is not DType.F32 and ops.get(sinks.made(grad).op).rounded_sink is not b[param].dtype:
        return None
    source = sinks.take(grad)
    node = _update(b, fused_op(source.op, kind), (*source.ins, *sources), {**source.attrs, **attrs}, source.src)
    return Pending(param, node)


def _is_sink(node: Node) -> bool:
    record = ops.get(node.op)
    return record.sink or record.rounded_sink is not None


def _clipped(b: Builder, users: Mapping[str, str], grads: Mapping[str, str], max_norm: float) -> dict[str, str]:
    """Gradients scaled so that their joint norm, in the user's units, is at most `max_norm`: all of them must exist at
    once."""
    squares = [b.add("sum_squares", g) for g in users.values()]
    while len(squares) > 1:  # clip_factor takes few operands; sums of squares add up in any grouping
        squares = [*squares[2:], b.add("add", squares[0], squares[1])]
    factor = b.add("clip_factor", squares[0], max_norm=max_norm)
    return {p: b.add("mul", g, factor) for p, g in grads.items()}


def _with_updates(b: Builder, updates: list[Pending], counts: bool = True) -> Graph:
    """Each update as early as its inputs and the last reader of what it overwrites allow; the step is counted last."""
    made_at = {out: i for i, node in enumerate(b.nodes) for out in node.outs}
    views = _views(b)
    read_at = {views.get(name, name): i for i, node in enumerate(b.nodes) for name in node.ins}  # last
    after: dict[int, list[Node]] = {}
    for pending in updates:
        record = ops.get(pending.node.op)
        overwritten = {pending.node.ins[i] for i in record.shares.values()}
        position = max(made_at.get(i, -1) for i in pending.node.ins)
        position = max(position, *(read_at.get(name, -1) for name in overwritten))
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
