"""Writing graphs: a Builder adds nodes one by one and infers every shape by the op's own rule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import ops
from ..ir import Array, DType, Graph, Node, Role, Shape, Step, Tensor
from .traits import PAGE_WRITERS


def named_by_content(hint: str, value: Array) -> str:
    """Entry points share constants by name, so a name must never stand for two values."""
    digest = hashlib.sha256(repr((value.dtype.str, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    return f"{hint}.{digest.hexdigest()[:8]}"


class Builder:
    """Accumulates nodes. `stage` and `src` are stamped on every node added."""

    def __init__(self, graph: Graph | None = None) -> None:
        self.tensors: dict[str, Tensor] = dict(graph.tensors) if graph else {}
        self.nodes: list[Node] = list(graph.nodes) if graph else []
        self.inputs: list[str] = list(graph.inputs) if graph else []
        self.outputs: list[str] = list(graph.outputs) if graph else []
        self.data: dict[str, Array] = dict(graph.data) if graph else {}
        self.layouts: dict[str, tuple[Step, ...]] = dict(graph.layouts) if graph else {}
        self.stage = "forward"
        self.src = ""
        self._wanted: set[str] | None = None
        self._next: dict[str, int] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def need(self, name: str) -> bool:
        """Is a gradient for this tensor wanted? Without a list of wanted ones, everything is."""
        return self._wanted is None or name in self._wanted

    def want(self, names: Iterable[str]) -> None:
        self._wanted = set(names)

    def fresh(self, hint: str) -> str:
        """`hint`, or `hint.2`, `hint.3`, … if taken."""
        if hint not in self.tensors:
            return hint
        k = self._next.get(hint, 2)
        while f"{hint}.{k}" in self.tensors:
            k += 1
        self._next[hint] = k + 1
        return f"{hint}.{k}"

    def tensor(
        self, name: str, shape: Shape, dtype: DType = DType.F32, role: Role = Role.VALUE, paged: bool = False
    ) -> str:
        name = self.fresh(name)
        self.tensors[name] = Tensor(name, tuple(shape), dtype, role, paged)
        return name

    def stored(self, name: str, value: Array, role: Role) -> str:
        """A constant or state tensor with its value; floats are kept in float64 until they are encoded. An array that
        nobody can write to is kept as it is, others are copied."""
        value = np.asarray(value)
        dtype = DType.of_numpy(value.dtype)
        if dtype is DType.F32:
            value = value.astype(np.float64, copy=value.flags.writeable)
        name = self.tensor(name, value.shape, dtype, role)
        self.data[name] = value if dtype is DType.F32 else value.astype(dtype.numpy)
        return name

    def const(self, name: str, value: Array) -> str:
        return self.stored(name, value, Role.CONST)

    def constant(self, hint: str, value: Array) -> str:
        """A constant that has its name from what it holds: everybody who needs the same one shares it."""
        name = named_by_content(hint, np.asarray(value))
        return name if name in self.tensors else self.const(name, value)

    def add_many(self, op: str, *ins: str, **attrs: Any) -> tuple[str, ...]:
        name = attrs.pop("name", None)
        record = ops.get(op)
        specs = record.infer([self[i] for i in ins], attrs)
        hint = name or f"{self.src or 'v'}.{op}"
        outs = []
        for k, (shape, dtype) in enumerate(specs):
            # An update writes where it reads, so its result plays the same role; a view is an ordinary value.
            updates = k in record.shares and not record.is_view
            role = self[ins[record.shares[k]]].role if updates else Role.VALUE
            outs.append(self.tensor(hint if k == 0 else f"{hint}.{k}", shape, dtype, role, record.page in PAGE_WRITERS))
        self.append(Node(op, tuple(ins), tuple(outs), attrs, self.stage, self.src))
        return tuple(outs)

    def add(self, op: str, *ins: str, **attrs: Any) -> str:
        return self.add_many(op, *ins, **attrs)[0]

    def append(self, node: Node) -> None:
        self.nodes.append(node)

    def graph(self) -> Graph:
        return Graph(
            dict(self.tensors), tuple(self.nodes), tuple(self.inputs), tuple(self.outputs),
            dict(self.data), dict(self.layouts),
        )  # fmt: skip


def feed(b: Builder, name: str, shape: Shape, dtype: DType = DType.F32, perm: tuple[int, ...] | None = None,
         stands: tuple[float, float] | None = None) -> str:  # fmt: skip
    """Declare a buffer of the caller and the node that brings it into the arena, axes permuted by `perm`. `stands`, of
    integers: they stand for q · scale + offset, as the program file says."""
    outside = b.tensor(name, shape, dtype, Role.INPUT)
    b.inputs.append(outside)
    attrs = {"perm": perm or tuple(range(len(shape))), **({"stands": stands} if stands else {})}
    return b.add("feed", outside, name=f"{name}.fed", **attrs)


def fetch(b: Builder, value: str, name: str, perm: tuple[int, ...] | None = None) -> str:
    """Declare a buffer of the caller that receives `value`, axes permuted by `perm`."""
    inside = b[value]
    perm = perm or tuple(range(len(inside.shape)))
    outside = b.tensor(name, tuple(inside.shape[p] for p in perm), inside.dtype, Role.OUTPUT)
    b.outputs.append(outside)
    b.append(Node("fetch", (value,), (outside,), {"perm": perm}, "io", b.src))
    return outside


def typed(graph: Graph, node: Node) -> ops.Call:
    """The node with its tensors, as rules see it."""
    return ops.Call(tuple(graph[i] for i in node.ins), tuple(graph[o] for o in node.outs), node.attrs)


__all__ = ["Builder", "feed", "fetch", "named_by_content", "typed"]
