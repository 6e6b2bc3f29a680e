"""Scheduling seen from above: steps that read and write values of known sizes, each at a price.

A *step* is one node that does work (a loop with its body counts as one), a *value* is memory in the arena: a tensor
with all views of it. State, constants and the caller's buffers are no values: they cost nothing here. A *schedule* is a
list of steps in which every step stands once, in the order of the graph, and some stand again later: a repeated step
writes a new instance of its values, and whoever reads a value reads its newest instance. An instance is alive from the
step that writes it to the last one that reads it; nothing else has to be said about retention. Between steps a value
may be written to PAGE, once, and be read from there as often as wanted: writing it out reads the newest instance,
reading it in makes a new one.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from ... import ops
from ...errors import Internal
from ...ir import ALIGN, Array, Graph, Node, Role, at
from ...ops.build import typed
from ..effort import NODE, PROFILE, PROFILE_STEP, spend
from ..graph.alias import Families, loop_range
from ..graph.rows import Marked, marked
from ..passes.recompute import Doing, In, Out
from ..place.arena import align_up
from .cost import Prices, by_rows_seconds

NEVER = -1


@dataclass(frozen=True, slots=True)
class PageOut:
    """Write a value to PAGE."""

    value: int


@dataclass(frozen=True, slots=True)
class PageIn:
    """Read a value from there."""

    value: int


Action = int | PageOut | PageIn  # a number is a step
Schedule = list[Action]


@dataclass(frozen=True, slots=True)
class Step:
    """`node` is its position in the graph. `limit`: the step before which it can be repeated at the latest, since
    that one overwrites state that it reads; NEVER: it cannot be repeated at all."""

    node: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float
    own_bytes: int  # scratch, and what a loop needs inside
    takes: tuple[int, ...]  # values whose memory the first result may take if they die here
    limit: int
    made: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    steps: tuple[Step, ...]
    bytes: tuple[int, ...]  # of each value, aligned
    names: tuple[str, ...]  # of each value
    maker: tuple[int, ...]  # value → the step that writes it
    pinned_bytes: int  # accumulators
    prices: Prices
    changed: frozenset[int] = frozenset()  # values that some step changes in place

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def plain(self) -> Schedule:
        """Nothing is repeated."""
        return list(range(len(self.steps)))

    def action_seconds(self, action: Action) -> float:
        if isinstance(action, int):
            return self.steps[action].seconds
        paging = self.prices.page
        if paging is None:
            raise Internal("a schedule pages, and there is nowhere to page to")
        count = self.bytes[action.value]
        return paging.out_seconds(count) if isinstance(action, PageOut) else paging.in_seconds(count)

    def action_joules(self, action: Action) -> float:
        paging = self.prices.page
        watts = self.prices.watts if isinstance(action, int) or paging is None else paging.watts
        return watts * self.action_seconds(action)

    @cached_property
    def table(self) -> _Table:
        return _Table.of(self)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Value → the steps that read it, in order."""
        found: list[list[int]] = [[] for _ in self.bytes]
        for k, step in enumerate(self.steps):
            for v in step.reads:
                found[v].append(k)
        return tuple(map(tuple, found))

    @cached_property
    def last(self) -> tuple[int, ...]:
        """Value → the last step that reads it, or else its maker."""
        return tuple(readers[-1] if readers else m for readers, m in zip(self.readers, self.maker, strict=True))

    @cached_property
    def pageable(self) -> tuple[bool, ...]:
        """Value → may it be paged? Not what several steps write into, one after the other, or change in place."""
        written = Counter(v for step in self.steps for v in step.writes)
        return tuple(
            self.prices.page is not None and written[v] == 1 and v not in self.changed
            for v in range(len(self.bytes))
        )  # fmt: skip


_read: dict[int, tuple[weakref.ref[Graph], list[tuple[int, Prices, int, Problem]]]] = {}
"""Problems of graphs that still exist, by their id: one graph is looked at by many methods."""


def problem_of(graph: Graph, batch: int, prices: Prices, align: int = ALIGN) -> Problem:
    key = id(graph)
    if key not in _read:
        _read[key] = weakref.ref(graph, lambda _: _read.pop(key, None)), []
    known = _read[key][1]
    for n, by, to, problem in known:
        if (n, to) == (batch, align) and by is prices:
            return problem
    made = _Reader(graph, batch, prices, align).problem()
    spend(NODE * len(graph.nodes))
    known.append((batch, prices, align, made))
    return made


class _Reader:
    def __init__(self, graph: Graph, batch: int, prices: Prices, align: int) -> None:
        self.graph, self.batch, self.prices, self.align = graph, batch, prices, align
        self.families = Families(graph, graph.data)  # a view of what is stored is no value
        for node in graph.nodes:
            for out, source in ops.get(node.op).shares.items():
                self.families.join(node.outs[out], node.ins[source])
            for gathered, piece in zip(node.outs, node.attrs.get("yields", ()), strict=False):
                self.families.join(gathered, piece)
        self.families.join_rows()
        self.value: dict[str, int] = {}  # root → number
        self.overwritten = self._overwrites()

    def problem(self) -> Problem:
        body = loop_range(self.graph)
        streams = {mark.nodes.start - 1: mark for mark in marked(self.graph)}
        inside = {*body, *(i for mark in streams.values() for i in mark.nodes)}
        steps: list[Step] = []
        number: dict[int, int] = {}  # node → step
        for i, node in enumerate(self.graph.nodes):
            if i in inside or (ops.get(node.op).is_view and not ops.is_loop(node)):
                continue
            number[i] = len(steps)
            if i in streams:
                steps.append(self._stream(i, streams[i]))
            else:
                steps.append(self._loop(i, node, body) if ops.is_loop(node) else self._step(i, node))
        steps = [self._limited(step, number) for step in steps]
        maker = [0] * len(self.value)
        for k, step in enumerate(steps):
            for v in step.writes:
                maker[v] = k
        roots = list(self.value)
        sizes = tuple(align_up(self.graph[r].bytes(self.batch), self.align) for r in roots)
        pinned = {self.families.root(t.name) for t in self.graph.of_role(Role.ACCUM)}
        pinned_bytes = sum(align_up(self.graph[r].bytes(self.batch), self.align) for r in pinned)
        changed = frozenset(self.value[r] for r in self.overwritten if r in self.value)
        return Problem(tuple(steps), sizes, tuple(roots), tuple(maker), pinned_bytes, self.prices, changed)

    def _values(self, names: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the values among these tensors; views are seen through."""
        found = []
        for name in names:
            root = self.families.root(name)
            if self.graph[root].role is Role.VALUE:
                found.append(self.value.setdefault(root, len(self.value)))
        return tuple(dict.fromkeys(found))

    def _step(self, i: int, node: Node) -> Step:
        record = ops.get(node.op)
        call = typed(self.graph, node)
        takes = [node.ins[k] for k in record.inplace if self._alike(node.ins[k], node.outs[0], node)]
        reads = self._values(node.ins)
        writes = tuple(v for v in self._values(node.outs) if v not in reads)  # but for what it changes in place
        scratch = align_up(int(at(record.scratch(call), self.batch)), self.align)
        once = any(self.graph[o].role is not Role.VALUE or self.families.root(o) in self.overwritten for o in node.outs)
        return Step(i, reads, writes, self.prices.seconds(node.op, call, self.batch), scratch, self._values(takes),
                    NEVER if once else len(self.graph.nodes))  # fmt: skip

    def _alike(self, source: str, out: str, node: Node) -> bool:
        """As `place` asks, but for the moment of death."""
        a, b = self.graph[source], self.graph[out]
        root = self.graph[self.families.root(source)]
        alone = all(o == source or self.families.root(o) != root.name for o in node.ins)
        return (a.shape, a.dtype) == (b.shape, b.dtype) and root.size == a.size and alone

    def _loop(self, i: int, node: Node, body: range) -> Step:
        """One step, never repeated: its inside works on one sample, beside what it gathers."""
        inner = [self.graph.nodes[k] for k in body]
        seconds = 0.0
        alive: list[tuple[int, int, int]] = []
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for k, one in enumerate(inner):
            call = typed(self.graph, one)
            seconds += self.batch * self.prices.seconds(one.op, call, 1)
            scratch = align_up(int(at(ops.get(one.op).scratch(call), 1)), self.align)
            alive.append((k, k, scratch))
            for name in (*one.ins, *one.outs):
                root = self.families.root(name)
                if self.graph[root].role is Role.VALUE and root in self.families.in_body:
                    turns = self.families.touched(body.start + k, name)
                    first.setdefault(root, turns[0] - body.start)
                    last[root] = turns[-1] - body.start
        alive += [(first[r], last[r], align_up(self.families.bytes(r, 1), self.align)) for r in first]
        change = [0] * (len(inner) + 1)
        for birth, death, count in alive:
            change[birth] += count
            change[death + 1] -= count
        inside = max(accumulate(change))
        reads = self._values([n for one in inner for n in one.ins if n not in self.families.in_body])
        return Step(i, reads, self._values(node.outs), seconds, inside, (), NEVER)

    def _stream(self, i: int, mark: Marked) -> Step:
        """One step, which can be repeated as a whole. What exists within it alone is there a few rows at a time."""
        nodes = [self.graph.nodes[k] for k in mark.nodes]
        seconds, scratch = by_rows_seconds(mark, self.prices), 0
        for k, node in zip(mark.nodes, nodes, strict=True):
            call = typed(self.graph, node)
            seconds += self.prices.seconds(node.op, call, self.batch)
            if k not in self.families.carries:
                scratch = max(scratch, align_up(int(at(ops.get(node.op).scratch(call), self.batch)), self.align))
        outside = {n for k, node in enumerate(self.graph.nodes) if k not in mark.nodes for n in (*node.ins, *node.outs)}
        touched = {self.families.root(n) for n in outside}
        inner = {self.families.root(o) for node in nodes for o in node.outs} - touched
        own = sum(align_up(self.families.bytes(r, self.batch), self.align) for r in inner) + scratch
        own += sum(align_up(self.families.carries[k], self.align) for k in mark.nodes if k in self.families.carries)
        made = {o for node in nodes for o in node.outs}
        reads = self._values([n for node in nodes for n in node.ins if n not in made])
        last = {self.families.root(o): o for node in nodes for o in node.outs
                if o in outside and self.graph[o].role is Role.VALUE}  # fmt: skip
        once = any(self.graph[o].role is not Role.VALUE or self.families.root(o) in self.overwritten for o in made)
        return Step(i, reads, self._values(list(last)), seconds, own, (), NEVER if once else len(self.graph.nodes),
                    tuple(last.values()))  # fmt: skip

    def _overwrites(self) -> dict[str, int]:
        """State, or a value that came from PAGE → the first node that changes it."""
        found: dict[str, int] = {}
        for i, node in enumerate(self.graph.nodes):
            record = ops.get(node.op)
            if not record.is_view:
                for source in record.shares.values():
                    found.setdefault(self.families.root(node.ins[source]), i)
        return found

    def _limited(self, step: Step, number: dict[int, int]) -> Step:
        """Nodes become steps in `limit`."""
        if step.limit == NEVER:
            return step
        body = self.graph.nodes[step.node].attrs.get("body", 0)
        read = {n for node in self.graph.nodes[step.node : step.node + 1 + body] for n in node.ins}
        ends = [self.overwritten[r] for r in map(self.families.root, read) if r in self.overwritten]
        limit = min((number[e] for e in ends), default=len(number))
        return replace(step, limit=limit)


@dataclass(frozen=True)
class Profile:
    """What a schedule needs, position by position. An *instance* is a value from where it is written to where it is
    read for the last time; those of one value stand together, in order."""

    live: Array  # position → bytes, with accumulators
    seconds: float
    joules: float
    value: Array  # instance → value
    birth: Array  # instance → position
    death: Array  # instance → position of its last use, or its birth
    _uses: tuple[Array, Array] = field(repr=False)  # positions of all events, and each instance's first one among them

    @property
    def peak_bytes(self) -> int:
        return int(self.live.max(initial=0))

    def uses(self, instance: int) -> list[int]:
        """Positions where it is read."""
        positions, starts = self._uses
        found: list[int] = positions[starts[instance] + 1 : starts[instance + 1]].tolist()
        return found

    def instance(self, value: int, position: int) -> int:
        """The newest one of the value that was made up to there."""
        first, end = np.searchsorted(self.value, (value, value + 1))
        return int(first + np.searchsorted(self.birth[first:end], position, side="right") - 1)

    @cached_property
    def lives(self) -> tuple[tuple[int, int, list[int]], ...]:
        """Value, birth and uses of each instance."""
        births, values = self.birth.tolist(), self.value.tolist()
        return tuple((values[i], births[i], self.uses(i)) for i in range(len(values)))


@dataclass(frozen=True)
class _Table:
    """All actions of a problem as arrays: steps, then writing out each value, then reading in each."""

    start: Array  # action → its first event; one more at the end
    value: Array  # event → value; a step's reads stand before its writes
    is_write: Array
    takes_start: Array  # the same for values whose memory may be taken
    takes: Array  # as events, counted from the action's first one
    own: Array  # action → bytes
    seconds: Array
    joules: Array
    bytes: Array  # of values

    @staticmethod
    def of(problem: Problem) -> _Table:
        steps, values = problem.steps, range(len(problem.bytes))
        paging = problem.prices.page is not None
        pages: list[Action] = [*map(PageOut, values), *map(PageIn, values)] if paging else []
        actions: list[Action] = [*range(len(steps)), *pages]
        events = [[(v, False) for v in s.reads] + [(v, True) for v in s.writes] for s in steps]
        events += [[(action.value, isinstance(action, PageIn))] for action in pages if not isinstance(action, int)]
        takes = [tuple(s.reads.index(v) for v in s.takes) for s in steps] + [()] * len(pages)
        flat = [event for one in events for event in one]
        return _Table(
            np.cumsum([0, *map(len, events)]), np.array([v for v, _ in flat], np.int64),
            np.array([w for _, w in flat], bool), np.cumsum([0, *map(len, takes)]),
            np.array([v for one in takes for v in one], np.int64),
            np.array([s.own_bytes for s in steps] + [0] * len(pages), np.int64),
            np.array([problem.action_seconds(k) for k in actions], np.float64),
            np.array([problem.action_joules(k) for k in actions], np.float64), np.array(problem.bytes, np.int64),
        )  # fmt: skip


def _listed(start: Array, actions: Array) -> tuple[Array, Array]:
    """The entries of all actions, one action after the other, and whose position each belongs to."""
    counts = start[actions + 1] - start[actions]
    positions = np.repeat(np.arange(len(actions)), counts)
    first = np.repeat(start[actions] - (np.cumsum(counts) - counts), counts)
    return first + np.arange(len(positions)), positions


def count_profile(steps: int) -> None:
    """On the meter, also where the answer is known without one: plans do not depend on that."""
    spend(PROFILE + PROFILE_STEP * steps)


def profile(problem: Problem, schedule: Schedule) -> Profile:
    count_profile(len(schedule))
    table = problem.table
    steps, values = len(problem.steps), len(problem.bytes)
    coded: Sequence[Action] = schedule
    if not set(map(type, schedule)) <= {int}:
        coded = [k if isinstance(k, int) else steps + k.value + values * isinstance(k, PageIn) for k in schedule]
    actions = np.array(coded, np.int64)
    if len(schedule) and actions.max() >= len(table.own):
        raise Internal("a schedule pages, and there is nowhere to page to")
    entries, positions = _listed(table.start, actions)
    by_value = np.argsort(table.value[entries], kind="stable")
    entries, positions = entries[by_value], positions[by_value]
    value, written = table.value[entries], table.is_write[entries]
    if len(value) and not written[np.append(True, value[1:] != value[:-1])].all():
        raise Internal("a schedule reads what is not there")
    start = np.append(np.flatnonzero(written), len(written))
    end = start[1:] - 1
    value, birth, death = value[start[:-1]], positions[start[:-1]], positions[end]
    size = table.bytes[value]
    change = np.zeros(len(schedule) + 1, np.int64)
    np.add.at(change, birth, size)
    np.subtract.at(change, death + 1, size)
    live = np.cumsum(change[:-1]) + table.own[actions] + problem.pinned_bytes
    taken, where = _listed(table.takes_start, actions)
    if len(taken):
        dying = np.zeros(len(entries), bool)  # event → is it the last use of an instance, in the order of the schedule?
        dying[by_value[end[end > start[:-1]]]] = True
        counts = table.start[actions + 1] - table.start[actions]
        dies = dying[(np.cumsum(counts) - counts)[where] + table.takes[taken]]
        where, taken = where[dies], taken[dies]
        first = np.append(True, where[1:] != where[:-1])[: len(where)]
        where, taken = where[first], taken[first]
        live[where] -= table.bytes[table.value[table.start[actions[where]] + table.takes[taken]]]
    seconds, joules = (
        float(np.cumsum(per[actions])[-1]) if len(schedule) else 0.0 for per in (table.seconds, table.joules)
    )
    return Profile(live, seconds, joules, value, birth, death, (positions, start))


def _stages(schedule: Schedule) -> list[tuple[int, list[Action]]]:
    """(step that stands there first, what stands before it since the one before)"""
    found: list[tuple[int, list[Action]]] = []
    before: list[Action] = []
    first = 0  # the next step that has not run yet
    for k in schedule:
        if not isinstance(k, int) or k < first:
            before.append(k)
            continue
        found.append((k, before))
        before = []
        first = k + 1
    return found


def doings(graph: Graph, problem: Problem, schedule: Schedule) -> dict[int, list[Doing]]:
    """Node → what is to be done right before it: what `passes.recompute` takes."""

    def tensor(value: int) -> str:
        """Where it is made, a value has a name that is no view's."""
        step = problem.steps[problem.maker[value]]
        made = step.made or [o for o in graph.nodes[step.node].outs if graph[o].role is Role.VALUE]
        return made[step.writes.index(value)]

    def one(action: Action) -> Doing:
        if isinstance(action, PageOut):
            return Out(tensor(action.value))
        if isinstance(action, PageIn):
            return In(tensor(action.value))
        return problem.steps[action].node

    return {problem.steps[t].node: [one(a) for a in before] for t, before in _stages(schedule) if before}
