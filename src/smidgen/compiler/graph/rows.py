"""Streams: a part of the loop over samples runs row by row, depth first, so that its values exist a few rows at a time.

In iteration i every value gets its next rows, and forgets those that nobody will read again:

    rows begin(i)..end(i) are there,    end(i)   = floor((i + 1) · rate) + ahead     both within 0..count
                                        begin(i) = floor(i · rate) + kept

A value's rate is the number of rows that an iteration makes of it: halved behind a stride of 2, doubled in front of it.
`ahead` is what its readers look forward, `kept` what they look back. What nobody reads outside the stream takes memory
for `held` rows; all else is there as a whole, sums over rows too, whose rows are those that they have taken in. The
stream is written in the `loop` node (`streams`), or, in a program for one sample at a time, in a node before its own
(`rows`); nodes and their meaning are the same with and without it.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ... import ops
from ...ir import Graph, Node, Role, Tensor, at
from ...ops.build import typed
from ...ops.registry import Call, N, Op
from ...ops.traits import BY_ROWS, LayoutRule, Rows

MOST_ROWS, MOST_REACH, MOST_EDGE, MOST_CYCLE = 1 << 15, 256, 64, 256  # as in runtime/rows.h
Plain = tuple[int, int, int, tuple[tuple[str, int, int, int, int, int], ...]]
"""A stream as an attribute: first node of the body, nodes, iterations; of each value name, rows, rate as two numbers,
ahead, kept."""


@dataclass(frozen=True, slots=True)
class Held:
    """Which rows of a value there are; `step` / `period` is its rate."""

    count: int
    step: int
    period: int
    ahead: int
    kept: int
    row_bytes: int

    def end(self, i: int) -> int:
        return min(max((i + 1) * self.step // self.period + self.ahead, 0), self.count)

    def begin(self, i: int) -> int:
        return min(max(i * self.step // self.period + self.kept, 0), self.count)

    @property
    def turn(self) -> int:
        """Rows that an iteration makes, at most."""
        return -(-self.step // self.period)

    @property
    def turns(self) -> int:
        """Iterations that make some, about."""
        return -(-self.count // max(self.turn, 1))

    @property
    def most(self) -> int:
        """Rows at a time."""
        return min(self.count, -(-self.step // self.period) + self.ahead - self.kept)

    @property
    def bytes(self) -> int:
        return self.most * self.row_bytes

    @property
    def passes(self) -> bool:
        """Rows that an iteration makes are forgotten when it ends."""
        return self.kept == self.ahead


@dataclass(frozen=True, slots=True)
class Stream:
    first: int  # node of the body
    nodes: int
    iterations: int
    values: Mapping[str, Held]  # by tensor; an output of the caller's has the rows of what is fetched

    @property
    def plain(self) -> Plain:
        values = ((name, v.count, v.step, v.period, v.ahead, v.kept) for name, v in self.values.items())
        return self.first, self.nodes, self.iterations, tuple(values)


def streams(graph: Graph, loop: Node) -> tuple[Stream, ...]:
    """Of a loop, in order."""
    return tuple(_stream(graph, plain, ()) for plain in loop.attrs.get("streams", ()))


def _stream(graph: Graph, plain: Plain, sums: Collection[str]) -> Stream:
    first, nodes, iterations, values = plain
    return Stream(first, nodes, iterations, {
        name: Held(n, step, period, ahead, kept, 0 if name in sums else _bytes(graph[name]))
        for name, n, step, period, ahead, kept in values
    })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Marked:
    """A stream outside of loops: its nodes, and the graph as they see it."""

    nodes: range
    stream: Stream
    graph: Graph

    @property
    def carries(self) -> dict[int, int]:
        """Node → bytes that a sum keeps beside its result."""
        rules = {i: rule_of(self.graph, self.graph.nodes[i]) for i in self.nodes}
        return {i: rule.carry_bytes for i, rule in rules.items() if rule is not None and rule.carry_bytes}


def marked(graph: Graph) -> tuple[Marked, ...]:
    """Of a graph for one sample at a time, in order."""
    found = []
    for i, node in enumerate(graph.nodes):
        if ops.is_stream(node):
            one, span = of_one(graph), range(i + 1, i + 1 + node.attrs["body"])
            sums = {n.outs[0] for n in graph.nodes[i + 1 : span.stop] if ops.get(n.op).row_sums}
            found.append(Marked(span, _stream(one, node.attrs["rows"], sums), one))
    return tuple(found)


def renamed(attrs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Attributes of a stream node of values that have other names."""
    new = tuple((names.get(name, name), *figures) for name, *figures in attrs["rows"][3])
    return {**attrs, "rows": (*attrs["rows"][:3], new)}


_ones: dict[int, tuple[weakref.ref[Graph], Graph]] = {}  # what `of_one` made of graphs that still exist, by their id


def of_one(graph: Graph) -> Graph:
    """The same with the sizes of one sample, which a stream outside of loops works on."""
    if (key := id(graph)) not in _ones:
        tensors = {name: replace(t, shape=at(t.shape, 1)) for name, t in graph.tensors.items()}
        made = graph.with_(tensors=tensors, nodes=tuple(map(_for_one, graph.nodes)))
        _ones[key] = weakref.ref(graph, lambda _: _ones.pop(key, None)), made
    return _ones[key][1]


def _for_one(node: Node) -> Node:
    return node.with_(attrs={**at(dict(node.attrs), 1), **({"sample": True} if ops.border(node) else {})})


def row_axis(shape: Sequence[Any]) -> int:
    """The first axis that is longer than 1; the last one if none is."""
    return next((i for i, dim in enumerate(shape) if dim != 1), max(len(shape) - 1, 0))


def rows_of(tensor: Tensor) -> int:
    return int(tensor.shape[row_axis(tensor.shape)]) if tensor.shape else 1  # type: ignore[arg-type]


def row_bytes(tensor: Tensor) -> int:
    return tensor.bytes(1) // max(rows_of(tensor), 1)


def _bytes(tensor: Tensor) -> int:
    return row_bytes(tensor) if tensor.role is Role.VALUE else 0


def streamed_inputs(graph: Graph, node: Node) -> list[int]:
    """Inputs that a node of a stream takes row by row; the others are there as a whole, like weights."""
    rule = rule_of(graph, node)
    if rule is None:
        return []
    if rule.sources or rule.kind != "each" or ops.border(node) or ops.get(node.op).is_view:
        return list(range(rule.sources or 1))
    out = graph[node.outs[0]]
    axis, rows = row_axis(out.shape), rows_of(out)
    found = []
    for k, name in enumerate(node.ins):
        shape = graph[name].shape
        at = axis - (len(out.shape) - len(shape))  # shapes broadcast from their ends
        is_operand = graph[name].role is Role.VALUE or _joins(ops.get(node.op))
        if is_operand and 0 <= at < len(shape) and shape[at] == rows and all(dim == 1 for dim in shape[:at]):
            found.append(k)
    return found


def rule_of(graph: Graph, node: Node) -> Rows | None:
    """How a node makes some rows of its result; None if it cannot."""
    record = ops.get(node.op)
    if len(node.outs) != 1:
        return None
    inside = graph[_walked(node)]
    if not inside.shape or rows_of(inside) > MOST_ROWS:
        return None
    axis = row_axis(inside.shape)
    if record.row_sums is not None:
        return record.row_sums(typed(graph, node), axis)
    if record.batchwise:
        return None
    if record.rows is not None:
        return record.rows(typed(graph, node), axis)
    if record.is_view:
        source = graph[node.ins[0]]
        same = rows_of(source) == rows_of(inside) and source.role is Role.VALUE and record.shares == {0: 0}
        return Rows("each") if same and record.rearranges is not None else None
    if record.needs_run or record.statistics or record.has_scratch or record.layout is None:
        return None
    return BY_ROWS if axis < len(inside.shape) - 1 and _leaves_rows(graph, node, record.layout.rule, axis) else None


def _leaves_rows(graph: Graph, node: Node, rule: LayoutRule, axis: int) -> bool:
    """A row of the result comes from the same row of the inputs; `axis` is that of the rows."""
    attrs, x, y = node.attrs, graph[node.ins[0]].shape if node.ins else (), graph[node.outs[0]].shape
    if rule in ("each", "channels", "rows"):
        return True
    if len(x) != len(y):
        return False
    if rule in ("join", "along"):
        return int(attrs["axis"]) % len(x) > axis
    if rule == "over":
        axes = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
        return all(int(i) % len(x) > axis for i in axes)
    if rule == "reorder":
        return tuple(attrs["perm"][: axis + 1]) == tuple(range(axis + 1))
    if rule == "trailing":
        return len(x) - int(attrs["axes"]) > axis
    return rule == "repeat"


def _walked(node: Node) -> str:
    """The tensor whose rows a node goes through: mostly those that it makes."""
    return node.ins[0] if ops.border(node) == "out" or ops.get(node.op).row_sums else node.outs[0]


def _joins(record: Op) -> bool:
    return record.layout is not None and record.layout.rule == "join"


def of_rows(graph: Graph, node: Node) -> Call:
    """The node as if each of its rows were a sample."""
    call, rows = typed(graph, node), set(streamed_inputs(graph, node))
    ins = tuple(_as_sample(t) if k in rows else t for k, t in enumerate(call.ins))
    return Call(ins, tuple(map(_as_sample, call.outs)), call.attrs)


def _as_sample(tensor: Tensor) -> Tensor:
    axis = row_axis(tensor.shape)
    return Tensor(tensor.name, (N, *[1] * axis, *tensor.shape[axis + 1 :]), tensor.dtype, tensor.role)


# -- a stream of some nodes --------------------------------------------------------------------------------------------


class Body:
    """The nodes of a loop, or others that follow each other, and what streams of them have in common. What is read
    `elsewhere` is there as a whole."""

    def __init__(self, graph: Graph, body: range, elsewhere: Collection[str] = ()) -> None:
        self.graph, self.body, self.elsewhere = graph, body, elsewhere
        self.nodes = [graph.nodes[i] for i in body]
        self.rules = [rule_of(graph, node) for node in self.nodes]
        self.needs = [rule.needs if rule is not None else (1, 1, 0, 0) for rule in self.rules]
        self.made = {node.outs[0]: k for k, node in enumerate(self.nodes) if node.outs}
        reads = [[(i, node.ins[i]) for i in streamed_inputs(graph, node)] for node in self.nodes]
        self.reads = [[(i, name) for i, name in some if name in self.made] for some in reads]  # row by row
        self.blocked = [self._is_blocked(k) for k in range(len(self.nodes))]
        self.last = self._last()
        self.count = [rows_of(graph[_walked(node)]) if node.outs else 1 for node in self.nodes]
        self.bytes = [0 if rule is None or rule.kind == "adds" else _bytes(graph[node.outs[0]])  # of a row
                      for node, rule in zip(self.nodes, self.rules, strict=True)]  # fmt: skip
        self._rate, self._odd = self._rates()

    def _is_blocked(self, k: int) -> bool:
        """It reads a value of the loop as a whole, or makes something else than a value."""
        node, rule = self.nodes[k], self.rules[k]
        makes = ops.border(node) == "out" or all(self.graph[out].role is Role.VALUE for out in node.outs)
        if not makes or rule is None:
            return True
        return not all(self._sees_rows(node, rule.of_input(i), i) for i in streamed_inputs(self.graph, node))

    def _sees_rows(self, node: Node, rule: Rows, k: int) -> bool:
        """Every row that is made needs a row of the input, unless windows in the padding alone are computed too; and it
        is told within the limits of the runtime."""
        if rule.kind == "each":
            return True
        source, out = self.graph[node.ins[k]], self.graph[_walked(node)]
        rows, made = rows_of(source), rows_of(out)
        if row_axis(source.shape) != row_axis(out.shape):
            return False
        reach, step = (MOST_EDGE if rule.kind == kind else MOST_REACH for kind in ("spread", "placed"))
        step = min(reach, step)
        if not -MOST_REACH <= rule.pad <= MOST_EDGE or not 0 < rule.reach <= reach or not 0 < rule.step <= step:
            return False
        by, over, low, high = rule.needs
        if rule.by > MOST_REACH or made - -(-(rows * over - high) // by) > MOST_EDGE:
            return False
        return rule.alone or (high >= 0 and ((made - 1) * by + low) // over < rows)

    def _last(self) -> dict[str, int]:
        """Value → its last reader; the place behind all of them if somebody outside the loop reads it."""
        found = {name: len(self.nodes) if name in self.elsewhere else -1 for name in self.made}
        for i, node in enumerate(self.graph.nodes):
            for name in (*node.ins, *node.attrs.get("yields", ())):
                if name in found:
                    found[name] = max(found[name], i - self.body.start if i in self.body else len(self.nodes))
        return found

    def _rates(self) -> tuple[dict[str, int], set[int]]:
        """Rows of each value for the same share of a sample, as whole numbers; and nodes whose inputs do not agree."""
        known: dict[str, Fraction] = {}
        odd: set[int] = set()
        for k, node in enumerate(self.nodes):
            rule = self.rules[k]
            if rule is None or not node.outs:
                continue
            seen = [(known[name], rule.of_input(i).needs) for i, name in self.reads[k] if name in known]
            rates = {rate * over / by for rate, (by, over, _, _) in seen}
            if len(rates) > 1:
                odd.add(k)
            known[node.outs[0]] = min(rates, default=Fraction(self.count[k]))  # what begins here: by its size
        scale = math.lcm(*(rate.denominator for rate in known.values())) if known else 1
        return {name: int(rate * scale) for name, rate in known.items()}, odd

    def stream(self, first: int, nodes: int, rows: int) -> Stream | None:
        """These nodes as a stream, in which an iteration makes `rows` rows of the value with most; None if they cannot
        be one."""
        span = range(first, first + nodes)
        if any(self.blocked[k] or k in self._odd for k in span):
            return None
        for k in span:  # what is made here is read by rows here; a view has the rows of what it shows
            if ops.get(self.nodes[k].op).is_view and self.made.get(self.nodes[k].ins[0], -1) < first:
                return None
            by_rows = {name for _, name in self.reads[k]}
            if any(name not in by_rows and first <= self.made.get(name, -1) < k for name in self.nodes[k].ins):
                return None
        names = {self.nodes[k].outs[0]: k for k in span}
        fastest = max(self._rate[name] for name in names)
        rates = {name: Fraction(self._rate[name] * rows, fastest) for name in names}
        if not self._repeats(names, rates):  # whole numbers of rows
            scale = math.lcm(*(rate.denominator for rate in rates.values()))
            rates = {name: rate * scale for name, rate in rates.items()}
        return self._scheduled(first, names, rates) if self._repeats(names, rates) else None

    def _repeats(self, names: Mapping[str, int], rates: Mapping[str, Fraction]) -> bool:
        """Nothing has more different turns than the runtime tries."""
        for out, k in names.items():
            by, over, _, _ = self.needs[k]
            rate = rates[out]
            if over > 1 and rate.denominator * over // math.gcd(over, rate.numerator * by) > MOST_CYCLE:
                return False
        return True

    def _scheduled(self, first: int, names: Mapping[str, int], rates: Mapping[str, Fraction]) -> Stream:
        ahead = dict.fromkeys(names, 0)
        for out, k in reversed(list(names.items())):
            rule = self.rules[k]
            assert rule is not None
            for i, name in self.reads[k]:
                if name in names:
                    ahead[name] = max(ahead[name], needs_ahead(rule.of_input(i), ahead[out], rates[out]))
        lag = math.lcm(*(rate.denominator for rate in rates.values()))
        delay = max(-(-a * rates[name].denominator // (rates[name].numerator * lag)) for name, a in ahead.items()) * lag
        kept: dict[str, int] = {}
        for name in names:
            ahead[name] -= delay * rates[name].numerator // rates[name].denominator
            kept[name] = ahead[name]
        for out, k in names.items():
            rule = self.rules[k]
            assert rule is not None
            for i, name in self.reads[k]:
                if name in names:
                    kept[name] = min(kept[name], looks_back(rule.of_input(i), ahead[out], rates[out]))
        iterations = max(
            -((ahead[n] - self.count[names[n]]) * rate.denominator // rate.numerator) for n, rate in rates.items()
        )
        end = first + len(names)
        values: dict[str, Held] = {}
        for name, rate in rates.items():
            is_whole = self.last[name] >= end or ops.border(self.nodes[names[name]]) == "out" or self.last[name] < 0
            is_sum = (rule := self.rules[names[name]]) is not None and rule.kind == "adds"
            # The loader asks for what readers look back, also where nothing was forgotten.
            all_ = -iterations * rate.numerator // rate.denominator
            low = min(kept[name], all_) if is_whole and not is_sum else kept[name]
            values[name] = Held(self.count[names[name]], rate.numerator, rate.denominator, ahead[name], low,
                                self.bytes[names[name]])  # fmt: skip
        shared = shared_rows(self.graph, [self.nodes[k] for k in names.values()], self.readers)
        for pair in (
            *reversed(shared),
            *shared,
        ):  # what works in place, or is a view, keeps the rows of all in one place
            low = min(values[name].kept for name in pair)
            values |= {name: replace(values[name], kept=low) for name in pair}
        return Stream(first, len(names), iterations, values)

    @functools.cached_property
    def readers(self) -> Mapping[str, int]:
        return readers_of(self.graph)


def needs_ahead(rule: Rows, out: int, rate: Fraction) -> int:
    """What `ahead` the input has at least, for that of the result, and its rate."""
    by, over, _, high = rule.needs
    grain = Fraction(math.gcd(rate.numerator * by, over * rate.denominator), rate.denominator)
    return math.floor(((out - 1) * by + high + over - grain) / over) + 1


def looks_back(rule: Rows, ahead: int, rate: Fraction) -> int:
    """What `kept` the input has at most, for `ahead` and the rate of the result."""
    by, over, low, _ = rule.needs
    late = by * (rate.denominator - 1) // rate.denominator  # ⌊X·by⌋ - ⌊X⌋·by at most
    return (ahead * by + low - late) // over


def readers_of(graph: Graph) -> dict[str, int]:
    """Tensor → how many nodes read it, what a loop gathers included."""
    readers: dict[str, int] = {}
    for node in graph.nodes:
        for name in {*node.ins, *node.attrs.get("yields", ())}:
            readers[name] = readers.get(name, 0) + 1
    return readers


def shared_rows(graph: Graph, nodes: Sequence[Node], known: Mapping[str, int] | None = None) -> list[tuple[str, str]]:
    """(result, input) of nodes of a stream that take the memory of an input: views, and what may work in place on a
    value that nobody else reads. `known`: the number of readers."""
    readers = readers_of(graph) if known is None else known
    made = {node.outs[0] for node in nodes}
    found = []
    for node in nodes:
        record = ops.get(node.op)
        if ops.border(node):
            continue
        if record.is_view:
            if node.ins[0] in made:
                found.append((node.outs[0], node.ins[0]))
            continue
        out = graph[node.outs[0]]
        for k in record.inplace:
            name = node.ins[k]
            same = name in made and (graph[name].shape, graph[name].dtype) == (out.shape, out.dtype)
            if same and readers[name] == 1 and node.ins.count(name) == 1:
                found.append((out.name, name))
                break
    return found


__all__ = ["Body", "Held", "Marked", "Stream", "looks_back", "marked", "needs_ahead", "of_one", "of_rows", "renamed",
           "row_axis", "row_bytes", "rows_of", "rule_of", "shared_rows", "streamed_inputs", "streams"]  # fmt: skip
