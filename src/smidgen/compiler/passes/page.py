"""Paging: rewrites that move values, or state, to PAGE and back. What to page is decided elsewhere.

The bits do not change. Between `page_start` and `page_wait` other nodes run; no more than `MOST_STARTED` pages are on
their way at a time, and nothing is paged inside a loop over samples or a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ... import ops
from ...errors import Internal
from ...ir import Graph, Node, Role, Tensor, unnamed_removed
from ..graph.alias import loop_range, regions

MOST_STARTED: Final = 4  # SMG_MAX_STARTED in runtime/smidgen.h


def page(graph: Graph, gaps: Mapping[str, Sequence[int]], *, ahead: int = 1) -> Graph:
    """Tensor → positions in `graph.nodes`: its readers from each of them on use a copy that is brought back from PAGE
    just before the first of them, and started `ahead` nodes earlier (0: brought at once). It is put there once, right
    after its last reader before the first position, unless it came from PAGE itself and the page still holds it."""
    work = _Work(graph, ahead)
    for name, positions in gaps.items():
        why = cannot_page(graph, name)
        if why:
            raise Internal(f"'{name}' cannot be paged", why=why)
        work.value(name, sorted(positions))
    return work.done()


def cannot_page(graph: Graph, name: str) -> str:
    """Why `page` would refuse this tensor; empty if it would not."""
    tensor, readers = graph[name], graph.readers()
    maker = next((i for i, node in enumerate(graph.nodes) if name in node.outs), None)
    if tensor.role is not Role.VALUE or tensor.paged:
        return "it is not a value in the arena"
    if maker is None or maker in loop_range(graph):
        return "it is of one sample, inside the loop"
    if _is_view(graph.nodes[maker]):
        return "it is a view"
    if ops.get(graph.nodes[maker].op).page == "start":
        return "it is on its way from PAGE"
    for member in _Reads(graph).family(name):
        for i in readers.get(member, ()):
            record = ops.get(graph.nodes[i].op)
            if not record.is_view and any(graph.nodes[i].ins[k] == member for k in record.shares.values()):
                return f"{graph.nodes[i].op} writes over it"
    return ""


def page_state(
    graphs: Mapping[str, Graph], names: Sequence[str], *, ahead: int = 1, apart: int | None = None
) -> dict[str, Graph]:
    """All entry points, with these state tensors in PAGE: each entry brings one before its first reader, and
    writes it back as soon as the last update has made it. Between readers that are more than `apart` nodes apart it is
    not in RAM: it is brought again."""
    found: dict[str, Graph] = {}
    for entry, graph in graphs.items():
        work = _Work(graph, ahead, apart)
        for name in dict.fromkeys(names):
            if name in graph.tensors:
                work.state(name)
        found[entry] = work.done()
    for name in names:
        homes = [g[name] for g in found.values() if name in g.tensors]
        if not homes or not all(t.paged for t in homes):
            raise Internal(f"'{name}' is not state of this program")
    return found


def times_read(graph: Graph, names: Iterable[str], apart: int) -> dict[str, int]:
    """How often `page_state` brings each of these tensors in one run of the graph."""
    reads = _Reads(graph)
    return {name: len(_apart(reads.uses(reads.family(name)), apart)) for name in names}


@dataclass
class _Slot:
    """What comes before one node of the old list, in this order: the old node before it may have made what goes out,
    and one page may only be started when another has arrived."""

    out: list[Node] = field(default_factory=list)
    arrive: list[Node] = field(default_factory=list)
    start: list[Node] = field(default_factory=list)

    def __iter__(self) -> Iterator[Node]:
        yield from (*self.out, *self.arrive, *self.start)


@dataclass
class _Transfer:
    """One page on its way: from the slot `start` to the slot `wait`."""

    page: str
    copy: str
    earliest: int
    start: int
    wait: int
    stage: str
    src: str
    views: list[Node]


class _Work:
    """One graph being rewritten. Places are positions in the old list; a slot comes before the node of its position."""

    def __init__(self, graph: Graph, ahead: int, apart: int | None = None) -> None:
        self.graph, self.ahead, self.apart = graph, ahead, apart
        self.reads = _Reads(graph)
        self.nodes = list(graph.nodes)
        self.tensors = dict(graph.tensors)
        self.regions = {i: region for region in regions(graph) for i in region}
        self.made = {out for node in graph.nodes for out in node.outs}
        self.turn = next((i for i, node in enumerate(graph.nodes) if node.stage == "backward"), len(self.nodes))
        self.slots: dict[int, _Slot] = {}
        self.transfers: list[_Transfer] = []

    # -- values --------------------------------------------------------------------------------------------------

    def value(self, name: str, positions: Sequence[int]) -> None:
        family = self.reads.family(name)
        uses = self.reads.uses(family)
        maker = next(i for i, node in enumerate(self.graph.nodes) if name in node.outs)
        stays = [maker, *(i for i in uses if i < positions[0])]
        gone = self.after(max(stays))
        home = self._home(maker, max(uses, default=0))
        if home is None:
            home = self.tensor(f"{name}.page", self.graph[name], paged=True)
            last, made = self.graph.nodes[max(stays)], self.graph.nodes[maker]
            node = Node("page_out", (name,), (home,), {}, last.stage, made.src)
            self.slot(gone).out.append(node)
        for first, end in zip(positions, (*positions[1:], len(self.nodes)), strict=True):
            readers = [i for i in uses if first <= i < end]
            if not readers:
                raise Internal(f"nobody reads '{name}' from node {first} on", why=f"its readers are {uses}")
            self._bring(name, home, readers, gone, family, "back")

    def _home(self, maker: int, last: int) -> str | None:
        """The page that the value came from, if it still holds it when the last reader comes."""
        node = self.graph.nodes[maker]
        page = ops.get(node.op).page
        if page not in ("in", "wait"):
            return None
        home = node.ins[-1]
        written = [i for i, n in enumerate(self.graph.nodes) if ops.get(n.op).page == "write" and n.ins[0] == home]
        return home if not written or written[0] > last else None

    def _bring(self, name: str, home: str, readers: Sequence[int], gone: int, family: set[str], hint: str) -> None:
        """A copy for these readers, under the views of it that they use."""
        copy = self.tensor(f"{name}.{hint}", replace(self.graph[name], role=Role.VALUE))
        seen = {name: copy}
        views: list[Node] = []
        for i in self.reads.views(family):  # in order, so that a view of a view comes after it
            node = self.graph.nodes[i]
            if node.ins[0] in seen:
                new = self.tensor(f"{node.outs[0]}.{hint}", self.graph[node.outs[0]])
                seen[node.outs[0]] = new
                views.append(node.with_(ins=(seen[node.ins[0]], *node.ins[1:]), outs=(new,)))
        for i in readers:
            self.nodes[i] = self.nodes[i].with_(ins=tuple(seen.get(t, t) for t in self.nodes[i].ins))
        first = self.graph.nodes[readers[0]]
        self.transfer(home, copy, gone, self.before(readers[0]), first.stage, first.src, views)

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self, name: str) -> None:
        given = self.graph[name]
        if not given.role.is_state or given.paged or name in self.made:
            raise Internal(f"'{name}' is not state in RAM")
        family = self.reads.family(name)
        uses = self.reads.uses(family)
        if not uses:
            self.tensors[name] = replace(given, paged=True)
            return
        newest, made = name, -1
        while (update := self.reads.update(newest)) is not None:
            newest, made = update
            self.tensors[newest] = replace(self.tensors[newest], role=Role.VALUE)
        for readers in _apart(uses, self.apart):
            self._bring(name, name, readers, 0, family, "here")
        self.tensors[name] = replace(given, paged=True)
        if made >= 0:
            node = self.graph.nodes[made]
            written = self.tensor(f"{name}.page", self.tensors[name])
            write = Node("page_write", (name, newest), (written,), {}, node.stage, node.src)
            self.slot(self.after(made)).out.append(write)

    # -- places --------------------------------------------------------------------------------------------------

    def tensor(self, hint: str, like: Tensor, paged: bool | None = None) -> str:
        name, k = hint, 2
        while name in self.tensors:
            name, k = f"{hint}.{k}", k + 1
        self.tensors[name] = replace(like, name=name, paged=like.paged if paged is None else paged)
        return name

    def slot(self, position: int) -> _Slot:
        return self.slots.setdefault(position, _Slot())

    def before(self, position: int) -> int:
        """The last slot before this node that is not inside the loop or a stream."""
        return self.regions[position].start if position in self.regions else position

    def after(self, position: int) -> int:
        """The first slot behind this node, or behind the loop or stream that it is in: its results are there then."""
        return self.regions[position].stop if position in self.regions else position + 1

    def transfer(self, home: str, copy: str, earliest: int, wait: int, stage: str, src: str, views: list[Node]) -> None:
        start = max(earliest, self.before(max(wait - self.ahead, 0)))
        self.transfers.append(_Transfer(home, copy, earliest, start, wait, stage, src, views))

    def done(self) -> Graph:
        self._start_all()
        nodes = [n for i, node in enumerate(self.nodes) for n in (*self.slots.get(i, ()), node)]
        nodes += self.slots.get(len(self.nodes), ())
        graph = self.graph.with_(nodes=tuple(nodes), tensors=self.tensors)
        return unnamed_removed(_without_dead_views(graph), state=False)

    def _busy(self) -> list[int]:
        """For each slot, how many pages are on their way there already."""
        busy = [0] * (len(self.nodes) + 1)
        since: dict[str, int] = {}
        for i, node in enumerate(self.graph.nodes):
            if ops.get(node.op).page == "start":
                since[node.outs[0]] = i
            elif ops.get(node.op).page == "wait":
                for p in range(since[node.ins[0]], i + 1):
                    busy[p] += 1
        return busy

    def _start_all(self) -> None:
        """Turn transfers into nodes. Where too many would be on their way, those that are needed last start later, or
        come when they are needed."""
        busy = self._busy()
        for t in sorted(self.transfers, key=lambda t: t.wait):
            full = [p for p in range(t.start, t.wait) if busy[p] >= MOST_STARTED]
            if full:
                t.start = self.after(full[-1])
            for p in range(t.start, t.wait):
                busy[p] += 1
            slot = self.slot(t.wait)
            if t.start >= t.wait:
                slot.arrive += [Node("page_in", (t.page,), (t.copy,), {}, t.stage, t.src), *t.views]
                continue
            buffer = self.tensor(f"{t.copy}.started", self.tensors[t.copy])
            stage = t.stage if t.start >= self.turn else "forward"
            self.slot(t.start).start.append(Node("page_start", (t.page,), (buffer,), {}, stage, t.src))
            slot.arrive += [Node("page_wait", (buffer, t.page), (t.copy,), {}, t.stage, t.src), *t.views]


def _is_view(node: Node) -> bool:
    return ops.get(node.op).is_view and not ops.is_loop(node)


class _Reads:
    """Who reads what in a graph that does not change."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.body, self.readers = graph, loop_range(graph), graph.readers()

    def is_view(self, position: int) -> bool:
        """Of something outside the loop, and outside it."""
        return position not in self.body and _is_view(self.graph.nodes[position])

    def family(self, name: str) -> set[str]:
        """The tensor and everything that is a view of it."""
        found, todo = {name}, [name]
        while todo:
            member = todo.pop()
            for i in self.readers.get(member, ()):
                node = self.graph.nodes[i]
                if self.is_view(i) and node.ins[0] == member and node.outs[0] not in found:
                    found.add(node.outs[0])
                    todo.append(node.outs[0])
        return found

    def views(self, family: set[str]) -> list[int]:
        """Nodes that make the family's views, in order."""
        return [i for i in self._all(family) if self.is_view(i) and self.graph.nodes[i].outs[0] in family]

    def uses(self, family: set[str]) -> list[int]:
        """Nodes that read one of the family, and are no views outside the loop."""
        return [i for i in self._all(family) if not self.is_view(i)]

    def update(self, name: str) -> tuple[str, int] | None:
        """What this tensor is called after the node that changes it in place, and where that one is."""
        for i in self.readers.get(name, ()):
            node = self.graph.nodes[i]
            record = ops.get(node.op)
            for out, source in record.shares.items():
                if not record.is_view and node.ins[source] == name:
                    return node.outs[out], i
        return None

    def _all(self, family: set[str]) -> list[int]:
        return sorted({i for member in family for i in self.readers.get(member, ())})


def _apart(uses: Sequence[int], apart: int | None) -> list[list[int]]:
    """The same in groups, with more than `apart` nodes from one to the next; one group if that is None."""
    found: list[list[int]] = []
    for i in uses:
        if found and (apart is None or i - found[-1][-1] <= apart):
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _without_dead_views(graph: Graph) -> Graph:
    """A view whose readers now read one of the copy would keep the original in RAM."""
    used: set[str] = set()
    kept: list[Node] = []
    body = loop_range(graph)
    for i, node in reversed(list(enumerate(graph.nodes))):
        if i in body or not _is_view(node) or node.outs[0] in used or graph[node.outs[0]].role is not Role.VALUE:
            kept.append(node)
            used.update(node.ins)
    return graph.with_(nodes=tuple(reversed(kept)))


__all__ = ["MOST_STARTED", "cannot_page", "page", "page_state", "times_read"]
