"""How much memory a network needs at least that runs in regions, each node by node or row by row: a dynamic programme
over all places to cut, with none of the planner's formulas. A region is followed row by row as it would be on paper:
each value has as many rows as there are at most between the oldest that somebody still needs and the newest; what it
reads for the last time goes while what it leaves behind comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from smidgen import ops
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.graph.rows import row_bytes, rows_of, rule_of, streamed_inputs
from smidgen.ir import ALIGN, Array, Graph, Node, Role
from smidgen.ops.build import typed


def aligned(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


@dataclass
class _Value:
    name: str
    bytes: int
    rows: int
    maker: int
    readers: list[int] = field(default_factory=list)  # nodes; len(nodes) stands for those outside the loop
    memory: str = ""  # the value in whose memory it is: a view, or written over an input that nobody else reads


class Regions:
    """The nodes of the loop over samples, for one sample."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        body = loop_range(graph)
        self.nodes = [graph.nodes[i] for i in body]
        self.values: dict[str, _Value] = {}
        for k, node in enumerate(self.nodes):
            for name in node.ins:
                if name in self.values:
                    self.values[name].readers.append(k)
            for name in node.outs:
                if graph[name].role is Role.VALUE:
                    tensor = graph[name]
                    self.values[name] = _Value(name, tensor.bytes(1), rows_of(tensor), k, memory=name)
        for i, node in enumerate(graph.nodes):
            for name in (*node.ins, *node.attrs.get("yields", ())):
                if i not in body and name in self.values:
                    self.values[name].readers.append(len(self.nodes))
        for node in self.nodes:
            self._share(node)

    def _share(self, node: Node) -> None:
        record, out = ops.get(node.op), node.outs[0]
        if out not in self.values:
            return
        for k in (0,) if record.is_view else record.inplace:
            name = node.ins[k]
            if name not in self.values:
                continue
            one, other = self.graph[name], self.graph[out]
            alone = len(set(self.values[name].readers)) == 1 and (one.shape, one.dtype) == (other.shape, other.dtype)
            if record.is_view or alone:
                self.values[out].memory = self.values[name].memory
                return

    def _last(self, memory: str) -> int:
        """The last node that reads anything in some memory."""
        return max((r for v in self.values.values() if v.memory == memory for r in v.readers), default=-1)

    def _first(self, memory: str) -> int:
        return self.values[memory].maker

    def bound(self) -> int:
        """The least largest peak of all ways to cut."""
        count = len(self.nodes)
        best = [0] + [1 << 60] * count
        for begin in range(count):
            for end in range(begin + 1, count + 1):
                if end > begin + 1 and not self._goes(range(begin, end)):
                    break
                peaks = [self.whole(begin)] if end == begin + 1 else []
                if self._goes(range(begin, end)):
                    peaks.append(self.region(range(begin, end)))
                best[end] = min(best[end], max(best[begin], min(peaks)))
        return best[count]

    def _goes(self, span: range) -> bool:
        """Can these nodes be a region? All of them work by rows."""
        return all(rule_of(self.graph, self.nodes[k]) is not None for k in span)

    def _memories(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for v in self.values.values():
            sizes[v.memory] = max(sizes.get(v.memory, 0), aligned(v.bytes))
        return sizes

    def whole(self, k: int) -> int:
        """A node that runs as a whole: what is there before it and later, and what it makes."""
        node = self.nodes[k]
        scratch = aligned(int(ops.get(node.op).scratch(typed(self.graph, node))))  # type: ignore[arg-type]
        return scratch + sum(c for m, c in self._memories().items() if self._first(m) <= k <= self._last(m))

    def region(self, span: range) -> int:
        made = {v.memory for v in self.values.values() if v.maker in span}
        sizes = self._memories()
        beside = [m for m in sizes if self._first(m) < span[0] and self._last(m) >= span[-1] + 1]
        dying = [m for m in sizes if self._first(m) < span[0] <= self._last(m) <= span[-1]]
        left = [m for m in made if self._first(m) in span and self._last(m) > span[-1]]
        ends, firsts = self._followed(span)
        rings = sum(self._ring(m, ends, firsts) for m in made if m not in left and self._first(m) in span)
        return sum(sizes[m] for m in beside) + rings + int(self._in_and_out(dying, left, sizes, ends, firsts, span))

    def _followed(self, span: range) -> tuple[dict[str, Array], dict[str, Array]]:
        """Of each value, step by step: rows that are made up to there, and the first that is needed from there on; the
        steps are rows of what is left behind that has most."""
        nodes = [self.nodes[k] for k in span]
        rows = {n.outs[0]: rows_of(self.graph[n.ins[0] if ops.border(n) == "out" else n.outs[0]]) for n in nodes}
        sinks = [name for name in rows if name not in self.values
                 or any(r not in span for r in self.values[name].readers) or not self.values[name].readers]  # fmt: skip
        steps = max(rows[name] for name in sinks)
        at = np.arange(0, steps + 1)
        ends = {name: np.zeros(steps + 1, np.int64) for name in rows}
        for name in sinks:
            ends[name] = -(-at * rows[name] // steps)
        firsts = {name: np.full(steps + 1, count, np.int64) for name, count in rows.items()}
        reads = {name: np.full(steps + 1, 1 << 40, np.int64) for name in self.values}
        for node in reversed(nodes):
            rule = rule_of(self.graph, node)
            assert rule is not None
            out = node.outs[0]
            by, over, low, high = rule.needs
            by_rows = streamed_inputs(self.graph, node)
            for k, name in enumerate(node.ins):
                if name not in self.values:
                    continue
                count = self.values[name].rows
                if k not in by_rows:
                    reads[name] = np.minimum(reads[name], np.where(at < steps, 0, 1 << 40))
                    continue
                now = ends[out]
                last = np.where(now > 0, ((now - 1) * by + high) // over + 1, 0)
                following = np.where(now < rows[out], np.clip((now * by + low) // over, 0, count), 1 << 40)
                reads[name] = np.minimum(reads[name], following)
                if name in ends:
                    ends[name] = np.maximum(ends[name], np.clip(last, 0, count))
        for name, first in reads.items():
            firsts[name] = np.minimum(first, self.values[name].rows)
        return ends, firsts

    def _ring(self, memory: str, ends: dict[str, Array], firsts: dict[str, Array]) -> int:
        """The most rows at a time of what shares a memory."""
        most = 0
        for v in self.values.values():
            if v.memory == memory and v.name in ends:
                there = ends[v.name][1:] - np.minimum(firsts[v.name][:-1], ends[v.name][:-1])
                most = max(most, int(there.max()) * row_bytes(self.graph[v.name]))
        return aligned(most)

    def _in_and_out(
        self, dying: Sequence[str], left: Sequence[str], sizes: dict[str, int], ends: dict[str, Array],
        firsts: dict[str, Array], span: range,
    ) -> float:  # fmt: skip
        """The most bytes at a time of rows that are still to be read, and of those that stay."""
        total = np.zeros(len(next(iter(ends.values()))) - 1, np.int64)
        for m in dying:
            gone = np.full(len(total), 1 << 60, np.int64)
            for v in self.values.values():
                if v.memory == m and any(r in span for r in v.readers):
                    gone = np.minimum(gone, firsts[v.name][:-1] * row_bytes(self.graph[v.name]))
            total += sizes[m] - np.minimum(gone, sizes[m])
        for m in left:
            here = [ends[v.name][1:] * row_bytes(self.graph[v.name]) for v in self.values.values()
                    if v.memory == m and v.name in ends]  # fmt: skip
            total += np.max(here, axis=0)
        return float(total.max())


__all__ = ["Regions"]
