"""The part of `verify` that replays streams, row by row: every row carries an identity of its own. Which rows there are
is worked out once more from the program's table; what a node needs of them comes from its op's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .. import ops
from ..errors import UnsafeLayout
from ..ir import Graph, Node
from ..ops.build import typed
from ..ops.traits import Rows
from ..program.instructions import Instruction, Operand, StreamTable
from .graph.rows import row_bytes, rows_of, rule_of
from .place.layout import Slot

KINDS: Final = ("each", "window", "spread", "placed", "adds")
FORGETS: Final = 16


class Replay(Protocol):
    """The replay of the entry point that the stream is part of."""

    graph: Graph
    index: int
    n: int

    @property
    def slots(self) -> Mapping[str, Slot]: ...
    @property
    def shadow(self) -> Mapping[str, Any]: ...
    def base(self, tensor: str) -> str: ...
    def value(self, tensor: str) -> int: ...
    def row_value(self, tensor: str, row: int) -> int: ...
    def unsafe(self, what: str, node: Node, why: str = "") -> UnsafeLayout: ...
    def kernel_needs(
        self, step: Instruction, params: Sequence[int], run: tuple[int, int, int]
    ) -> Sequence[int] | None: ...
    def check_region(self, node: Node, name: str, region: str, start: int, count: int) -> None: ...
    def check_whole(self, node: Node, name: str, region: str, start: int, count: int) -> None: ...
    def write_outside(self, node: Node, name: str, buffer: int, row: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Value:
    count: int
    step: int
    period: int
    ahead: int
    kept: int
    bytes: int

    def _within(self, row: int) -> int:
        return max(0, min(self.count, row))

    def end(self, i: int) -> int:
        return self._within(((i + 1) * self.step) // self.period + self.ahead) if i >= 0 else 0

    def begin(self, i: int) -> int:
        return self._within((i * self.step) // self.period + self.kept)


class Stream:
    """One stream of one sample. `graph` has the sizes that its nodes see."""

    def __init__(
        self, replay: Replay, graph: Graph, nodes: Sequence[Node], head: Instruction, steps: Sequence[Instruction]
    ) -> None:  # fmt: skip
        self.r, self.graph, self.nodes, self.steps = replay, graph, nodes, steps
        table = StreamTable.of(head.table, head.body)
        if table is None or head.body != len(nodes) or len(steps) != len(nodes):
            raise replay.unsafe("the program's stream is not the graph's", nodes[0])
        self.iterations = table.iterations
        self.values = [_Value(*words) for words in table.values]
        self.rules = [self._rule(*one) for one in zip(nodes, steps, table.rules, strict=True)]
        self.made = {node.outs[0] for node in nodes}
        self.sums = {node.outs[0] for node, (rule, _) in zip(nodes, self.rules, strict=True) if rule.kind == "adds"}

    def _rule(self, node: Node, step: Instruction, given: Sequence[int]) -> tuple[Rows, bool]:
        rule = rule_of(self.graph, node)
        if rule is None or given[0] & ~FORGETS != KINDS.index(rule.kind):
            raise self.r.unsafe("a node of the stream does not work by rows", node)
        if tuple(given[1:]) != rule.plain:
            raise self.r.unsafe("the program's windows are not the graph's", node)
        kernel = rule.kernel or ops.get(node.op).kernel(typed(self.graph, node))
        if step.kernel != kernel:
            raise self.r.unsafe(f"kernel '{step.kernel}' where '{kernel}' is meant", node)
        return rule, bool(given[0] & FORGETS)

    def replay(self) -> None:
        for i in range(self.iterations):
            for node, step, (rule, forgets) in zip(self.nodes, self.steps, self.rules, strict=True):
                self._turn(node, step, rule, forgets, i)

    def finish(self, wholes: Sequence[str]) -> None:
        """What others read is there as a whole, every row at its place, and a sum of all of them."""
        for name in wholes:
            at, tensor = self._place(name), self.graph[name]
            if name in self.sums:
                node = next(node for node in self.nodes if node.outs[0] == name)
                self._check(name, rows_of(self.graph[node.ins[0]]), at, tensor.bytes(1), node)
            else:
                for k in range(rows_of(tensor)):
                    self._check(name, k, at + k * row_bytes(tensor), row_bytes(tensor), self.nodes[-1])
            self.write_whole(name)

    def write_whole(self, name: str) -> None:
        shadow = self.r.shadow["arena"]
        shadow.write(self._place(name), self.r.graph[name].bytes(1), self.r.value(name))

    def _place(self, name: str) -> int:
        slot = self.r.slots[name]
        return slot.offset + self.r.index * slot.stride

    # -- one node in one iteration ---------------------------------------------------------------------------------

    def _turn(self, node: Node, step: Instruction, rule: Rows, forgets: bool, i: int) -> None:
        out = self._value(step.operands[0], node)
        if forgets and i:
            self._forget(step.operands[0], out, i)
        begin, end = out.end(i - 1), out.end(i)
        if begin == end:
            return
        windowed = {"each": 0, "adds": 2 if rule.sources > 1 else 0}.get(rule.kind, 1)  # operand
        count = rows_of(self.graph[node.ins[windowed - 1]]) if windowed else out.count
        first, rows, above = needed(rule, begin, end, count)
        if rule.kind == "each":
            params = step.params_at(end - begin)
        else:
            params = step.params_at(1)
            for word, value in zip(rule.words, (rows, end - begin, above), strict=True):
                params[word] = value
            if rule.kind in ("placed", "adds"):
                params[rule.words[2] + 1] = begin
        needs = self.r.kernel_needs(step, params, (self.r.n, self.r.n, self.r.index))
        if needs is None:
            raise self.r.unsafe(f"kernel '{step.kernel}' refuses its parameters", node)
        names = [*node.outs, *node.ins, *[""] * (len(step.operands) - len(node.outs) - len(node.ins))]
        moves = [(first, rows) if k and k == windowed else (begin, end - begin) for k in range(len(names))]
        spans = [self._span(node, *one, i) for one in zip(names, step.operands, needs, moves, strict=True)]
        self._overlaps(node, spans, step)
        if rule.kind == "adds":
            self._sum(node, names, spans, begin, end)
        for k, (name, operand) in enumerate(zip(names, step.operands, strict=True)):
            region, start, bytes_ = spans[k]
            if region not in self.r.shadow or not k or (not name and rule.kind == "adds"):
                continue
            if not name:
                self.r.shadow[region].write(start, bytes_, 0)
            elif operand.rows and self.r.base(name) in self.made:
                row, (at, used) = self._value(operand, node).bytes, moves[k]
                for one in range(used):
                    self._check(name, at + one, start + one * row, row, node)
            else:
                self.r.check_whole(node, name, region, start, bytes_)
        if rule.kind != "adds":
            self._write(node, step.operands[0], spans[0], begin, end)

    def _sum(
        self, node: Node, names: Sequence[str], spans: Sequence[tuple[str, int, int]], begin: int, end: int
    ) -> None:  # fmt: skip
        """A sum, and what its kernel keeps beside it, are what the call before has left: they are called by the rows
        that they have taken in."""
        kept = [(names[0], spans[0]), *((f"{names[0]}:{k}", spans[k]) for k, name in enumerate(names) if not name)]
        for name, (region, start, bytes_) in kept:
            if region not in self.r.shadow:
                raise self.r.unsafe(f"'{name}' is not in the arena", node)
            if begin:
                self._check(name, begin, start, bytes_, node)
            self.r.shadow[region].write(start, bytes_, self._row(name, end))

    def _span(
        self, node: Node, name: str, operand: Operand, need: int, moves: tuple[int, int], i: int
    ) -> tuple[str, int, int]:
        """Region, start and bytes of an operand; `moves`: its first row in this turn, and how many."""
        at, used = moves
        start = operand.offset + self.r.index * operand.stride
        if operand.rows:
            value = self._value(operand, node)
            if used and (at < value.begin(i) or (at + used > value.end(i) and value.step)):
                raise self.r.unsafe(f"rows {at} to {at + used} of '{name}' are not there", node)
            start += (at - value.begin(i)) * value.bytes
            if operand.region == "arena" and value.bytes and need > used * value.bytes:
                raise self.r.unsafe(f"'{name}' is read beyond its rows", node)
        self.r.check_region(node, name, operand.region, start, need)
        return operand.region, start, need

    def _overlaps(self, node: Node, spans: Sequence[tuple[str, int, int]], step: Instruction) -> None:
        region, start, bytes_ = spans[0]
        allowed = {1 + k for k in ops.get(node.op).inplace}
        for k, (other, at, count) in enumerate(spans[1:], 1):
            meets = count and region == other == "arena" and start < at + count and at < start + bytes_
            if meets and not (k in allowed and (start, bytes_) == (at, count)):
                raise self.r.unsafe(f"'{node.outs[0]}' and operand {k} overlap", node)

    def _write(self, node: Node, operand: Operand, span: tuple[str, int, int], begin: int, end: int) -> None:
        region, start, _ = span
        name, row = node.outs[0], self._value(operand, node).bytes
        for one in range(end - begin):
            if region in self.r.shadow:
                self.r.shadow[region].write(start + one * row, row, self._row(name, begin + one))
            else:
                self.r.write_outside(node, name, operand.offset, begin + one)

    def _forget(self, operand: Operand, value: _Value, i: int) -> None:
        if operand.region not in self.r.shadow:
            return
        shadow, start = self.r.shadow[operand.region], operand.offset + self.r.index * operand.stride
        before, begin, end = value.begin(i - 1), value.begin(i), value.end(i - 1)
        if begin == before:
            return
        for k in range(begin, end):
            found = shadow.read(start + (k - before) * value.bytes, value.bytes)
            same = found[0] if len(set(found)) == 1 else 0
            shadow.write(start + (k - begin) * value.bytes, value.bytes, same)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _value(self, operand: Operand, node: Node) -> _Value:
        if not 0 < operand.rows <= len(self.values):
            raise self.r.unsafe("an operand that moves by rows is not in the stream's table", node)
        return self.values[operand.rows - 1]

    def _row(self, name: str, row: int) -> int:
        return self.r.row_value(self.r.base(name), row)

    def _check(self, name: str, row: int, start: int, count: int, node: Node) -> None:
        wanted, found = self._row(name, row), self.r.shadow["arena"].read(start, count)
        if any(value != wanted for value in found):
            raise self.r.unsafe(f"row {row} of '{name}' is overwritten before it is read", node)


def needed(rule: Rows, begin: int, end: int, count: int) -> tuple[int, int, int]:
    """First row and rows of the input, and what is told of what is above them, for rows begin..end of the result."""
    if rule.kind == "each":
        return begin, end - begin, 0
    if rule.kind in ("window", "adds"):
        low, high = begin * rule.step - rule.pad, (end - 1) * rule.step - rule.pad + rule.reach
    elif rule.kind == "spread":
        low, high = -((rule.reach - 1 - begin - rule.pad) // rule.step), (end - 1 + rule.pad) // rule.step + 1
    else:
        low = (begin * rule.by - rule.pad) // rule.step
        high = ((end - 1) * rule.by - rule.pad + rule.reach - 1) // rule.step + 1
    first = min(max(low, 0), count)
    rows = max(min(high, count) - first, 0)
    above = {"spread": rule.pad + begin - first * rule.step, "placed": first}
    return first, rows, above.get(rule.kind, max(-low, 0))
