"""Prices of this machine: every kernel of a graph is timed once on its own shapes, and remembered in a file.

Plans are made with the fixed prices of cost.py, so that a model gives the same program everywhere; measured ones say
how long a step will take here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import atomic, ops, place
from ..build import Builder, typed
from ..encode import encode
from ..errors import SmidgenError
from ..ir import Array, Graph, Node, Role, Tensor, at
from ..native import Machine
from ..program import Program
from .cost import HOST, Prices

LEAST_S = 2e-4  # of timed work: repeated until it takes as long
ROUNDS = 3
MOST_COPIES = 64


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smidgen"


@dataclass(frozen=True, slots=True)
class Measured(Prices):
    """Seconds of each call, looked up; what was not measured is priced by rates."""

    known: dict[str, float] = field(default_factory=dict)

    def seconds(self, op: str, call: ops.Call, n: int) -> float:
        found = self.known.get(signature(op, call, n))
        return Prices.seconds(self, op, call, n) if found is None else found


def signature(op: str, call: ops.Call, n: int) -> str:
    """Everything that a kernel's time can depend on."""
    types = [(at(t.shape, n), t.dtype.value) for t in (*call.ins, *call.outs)]
    attrs = sorted((k, repr(at(v, n))) for k, v in call.attrs.items() if k not in ("key", "yields"))
    return hashlib.sha256(repr((op, types, attrs)).encode()).hexdigest()[:24]


def measured(graphs: Iterable[tuple[Graph, int]], kernels: str = "fast", threads: int = 1) -> Measured:
    """Prices of all nodes of these graphs (each with its batch) on this machine, by these kernels."""
    path = cache_folder() / f"prices-{_machine(kernels, threads)}.json"
    known = _read(path)
    before = len(known)
    for graph, batch in graphs:
        body = place.loop_range(graph)
        for i, node in enumerate(graph.nodes):
            n = 1 if i in body else batch
            record = ops.get(node.op)
            if record.is_view or node.op in ("feed", "fetch"):
                continue
            key = signature(node.op, typed(graph, node), n)
            if key not in known:
                known[key] = _time(graph, node, n, kernels, threads)
    if len(known) > before:
        _write(path, known)
    return Measured(HOST.macs_per_s, HOST.bytes_per_s, HOST.call_s, "this machine", known=known)


def _time(graph: Graph, node: Node, n: int, kernels: str, threads: int) -> float:
    """Seconds of one call: a program with many copies of the node, less one with a single one."""
    one = _run(graph, node, n, 1, kernels, threads)
    copies = min(MOST_COPIES, max(4, int(LEAST_S / max(one, 1e-7))))
    many = _run(graph, node, n, 1 + copies, kernels, threads)
    return max(many - one, 0.0) / copies


def _run(graph: Graph, node: Node, n: int, copies: int, kernels: str, threads: int) -> float:
    program, inputs = _program(graph, node, n, copies)
    machine = Machine(program.to_bytes(), kernels=kernels, threads=threads)
    best = float("inf")
    for _ in range(ROUNDS + 1):  # the first also proves extents and touches the memory
        start = time.perf_counter()
        machine.run("train", inputs, [], n, n)
        best = min(best, time.perf_counter() - start)
    return best


def _program(graph: Graph, node: Node, n: int, copies: int) -> tuple[Program, list[Array]]:
    """The node alone, `copies` times over; what it updates goes on from copy to copy."""
    rng = np.random.default_rng(0)
    b = Builder()
    names: dict[str, str] = {}
    inputs: list[Array] = []
    for name in dict.fromkeys(node.ins):
        names[name] = _given(b, graph[name], n, rng, inputs)
    record = ops.get(node.op)
    for _ in range(copies):
        outs = b.add_many(node.op, *(names[i] for i in node.ins), **node.attrs)
        if not record.is_view:
            names |= {node.ins[source]: outs[out] for out, source in record.shares.items()}
    made = b.graph()
    stored, const_bytes, state_bytes = place.place_state([made])
    layout = place.place(made, n, stored, const_bytes, state_bytes)
    return encode({"train": (made, layout)}, n, {}), inputs


def _given(b: Builder, tensor: Tensor, n: int, rng: np.random.Generator, inputs: list[Array]) -> str:
    """Like the graph's tensor: stored if it is stored there, else fed. Integers and bits are zero."""
    shape = at(tensor.shape, n)
    value = np.zeros(shape, tensor.dtype.numpy)
    if value.dtype.kind == "f":
        value[...] = rng.uniform(0.1, 1.0, shape)
    if tensor.role is Role.CONST or tensor.role.is_state:
        return b.stored(tensor.name, value, tensor.role)
    if tensor.role is Role.ACCUM:
        return b.tensor(tensor.name, tensor.shape, tensor.dtype, Role.ACCUM)
    outside = b.tensor(f"in:{tensor.name}", tensor.shape, tensor.dtype, Role.INPUT)
    b.inputs.append(outside)
    inputs.append(value)
    return b.add("feed", outside, perm=tuple(range(len(shape))), name=tensor.name)


# -- the file --------------------------------------------------------------------------------------------------------


def _machine(kernels: str, threads: int) -> str:
    """Names the processor, the kernels and the library that were timed."""
    from ..native import library_path

    cpu = next((line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")), "")
    stat = library_path().stat()
    facts = (cpu, kernels, threads, stat.st_size, stat.st_mtime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text())
        return {str(k): float(v) for k, v in found.items() if 0 <= float(v) < 1e6}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(path: Path, known: dict[str, float]) -> None:
    """A cache: if it cannot be written, the next run measures again."""
    with contextlib.suppress(OSError, SmidgenError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, json.dumps(known).encode())
