"""Programs made by hand, without planner: one op, a chain, a loop."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smidgen import ops
from smidgen.compiler.encode import encode
from smidgen.compiler.place.layout import Layout, Slot
from smidgen.ir import Array, Batch, DType, Graph, Node, Role, at
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.program import Program
from tests.support.op_cases import declared, dtype_of


def sealed(data: bytes | bytearray) -> bytes:
    """With the size and the checksum that belong to these bytes."""
    if len(data) < 16:
        return bytes(data)
    rest = bytes(data[16:])
    return bytes(data[:8]) + struct.pack("<2I", len(data), zlib.crc32(rest)) + rest


ALIGN = 16


class Placer:
    """Every tensor at a place of its own; what must share memory does. Nothing else is clever here."""

    def __init__(self) -> None:
        self.stored: dict[str, Slot] = {}
        self.ends = {"const": 0, "state": 0}

    def place(self, graph: Graph, batch: int) -> Layout:
        source = {
            node.outs[o]: node.ins[i] for node in graph.nodes for o, i in ops.get(node.op).shares.items()
        }  # fmt: skip
        gathered = {
            piece: whole
            for node in graph.nodes
            for whole, piece in zip(node.outs, node.attrs.get("yields", ()), strict=False)
        }
        slots: dict[str, Slot] = {}
        arena = 0
        for tensor in graph.tensors.values():
            if tensor.name in source or tensor.name in gathered or tensor.role in (Role.INPUT, Role.OUTPUT):
                continue
            count = tensor.bytes(batch)
            if tensor.role is Role.CONST or tensor.role.is_state:
                region: Any = "const" if tensor.role is Role.CONST else "state"
                if tensor.name not in self.stored:
                    self.stored[tensor.name] = Slot(region, self.ends[region], count)
                    self.ends[region] += up(count)
                slots[tensor.name] = self.stored[tensor.name]
            else:
                slots[tensor.name] = Slot("arena", arena, count)
                arena += up(count)
        for piece, whole in gathered.items():
            stride = graph[whole].bytes(1)
            slots[piece] = Slot("arena", slots[whole].offset, stride, stride)
        for view in [t for t in graph.tensors if t in source]:
            root = view
            while root in source:
                root = source[root]
            slots[view] = slots[root]
        scratch: dict[int, Slot] = {}
        for i, node in enumerate(graph.nodes):
            call = ops.Call(tuple(graph[t] for t in node.ins), tuple(graph[t] for t in node.outs), node.attrs)
            count = int(at(ops.get(node.op).scratch(call), batch)) if node.op != "loop" else 0
            if count:
                scratch[i] = Slot("arena", arena, count)
                arena += up(count)
        return Layout(slots, scratch, self.ends["const"], self.ends["state"], arena, arena, ALIGN)


def up(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


def encoded(graphs: Mapping[str, Graph], batch: int, meta: Mapping[str, Any] | None = None) -> Program:
    placer = Placer()
    for graph in graphs.values():
        placer.place(graph, batch)  # so that all entries know the final sizes of CONST and STATE
    return encode({k: (g, placer.place(g, batch)) for k, g in graphs.items()}, batch, meta or {})


def chain() -> Graph:
    """relu of a permuted image, its gradient mask applied to a constant: reads CONST, STATE, two inputs."""
    b = Builder()
    x = feed(b, "x", (N, 3, 4, 5), perm=(0, 2, 3, 1))
    y = b.add("relu", x)
    fetch(b, y, "y", perm=(0, 3, 1, 2))
    w = b.stored("w", np.arange(-3.0, 4.0), Role.PARAM)
    z = b.add("relu", w)
    fetch(b, z, "z")
    c = b.const("c", np.linspace(-1, 1, 7))
    fetch(b, b.add("relu_dx", c, z), "g")
    return b.graph()


def looped(dtype: DType = DType.F32, per_sample: int = 2) -> Graph:
    """A loop over samples whose body feeds, works and fetches; what it yields is read after it."""
    b = Builder()
    b.inputs.append(b.tensor("x", (Batch(per_sample), 3, 5), dtype, Role.INPUT))
    b.outputs.append(b.tensor("y", (Batch(per_sample), 5, 3), dtype, Role.OUTPUT))
    whole = b.tensor("whole", (Batch(per_sample), 5, 3), dtype)
    at_ = len(b.nodes)
    one = b.add("feed", "x", perm=(0, 2, 1), sample=True, name="one")
    done = b.add("relu", one) if dtype is DType.F32 else one
    flat = b.add("reshape", done, shape=(5 * per_sample, 3)) if "reshape" in ops.all_ops() else done
    b.append(Node("fetch", (flat if flat == done else done,), ("y",), {"perm": (0, 1, 2), "sample": True}, "io"))
    body = len(b.nodes) - at_
    spec = (b[done].shape, dtype)
    b.nodes.insert(at_, Node("loop", (), (whole,), {"body": body, "yields": (done,), "specs": (spec,)}))
    fetch(b, whole, "again", perm=(0, 2, 1))
    return b.graph()


def one_op(
    op: ops.Op, case: ops.Case, arrays: list[Array], constant: Sequence[int] = ()
) -> tuple[Graph, dict[str, Array]]:
    """A program of one op: its inputs are fed, or state if it updates them, or constant; its outputs are fetched."""
    b = Builder()
    names, fed = [], {}
    for i, (shape, array) in enumerate(zip(declared(case, arrays), arrays, strict=True)):
        if op.shares and not op.is_view and i in op.shares.values():
            names.append(b.stored(f"in{i}", array, Role.PARAM))
        elif i in constant:
            names.append(b.const(f"in{i}", array))
        else:
            names.append(feed(b, f"in{i}", tuple(shape), dtype_of(array)))
            fed[f"in{i}"] = array
    for i, out in enumerate(b.add_many(op.name, *names, **case.attrs)):
        fetch(b, out, f"out{i}")
    return b.graph(), fed


RUNNABLE = [o for o in ops.all_ops().values() if o.cases and not o.page and o.name not in ("feed", "fetch", "loop")]
