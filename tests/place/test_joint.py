"""Results of streams in the block of what they are made from: as near as they can be, and no nearer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from smidgen.compiler.graph.alias import Families, loop_range
from smidgen.compiler.graph.joint import Pair, pairs, rows_apart
from smidgen.compiler.graph.rows import Body, Stream, row_bytes, rule_of
from smidgen.compiler.passes.sample_loop import sample_loop
from smidgen.compiler.passes.stream_rows import with_streams
from smidgen.compiler.place import arena
from smidgen.compiler.plan_facts import facts_of
from smidgen.errors import BadProgram, UnsafeLayout
from smidgen.ir import Graph, Node
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.timeline import tensor_text
from smidgen.runtime.machine import Machine
from tests.support.generated_streams import BATCH, network, program, random_streams


def image(size: int, *layers: str) -> Graph:
    """A map of 4 channels that is made as a whole, and layers that follow on it: conv and same read it by 3×3, down
    with a stride of 2, add adds the map itself, wide has twice the channels."""
    b = Builder()
    first = x = b.add("relu", feed(b, "x", (N, 4, size, size), perm=(0, 2, 3, 1)))
    for layer in layers:
        if layer == "add":
            x = b.add("add", first, x)
            continue
        channels = int(b[x].shape[3])  # type: ignore[arg-type]
        out, step = channels * (2 if layer == "wide" else 1), 2 if layer == "down" else 1
        x = b.add("conv2d", x, b.const("w", [[[[0.1] * channels] * 3] * 3] * out), stride=(step, step),
                  padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1)  # fmt: skip
    fetch(b, x, "y", perm=(0, 3, 1, 2))
    return sample_loop(b.graph())


def behind_the_first(graph: Graph, rows: int = 1) -> Graph:
    """All but the map that is there as a whole, and the copy of the result, in a stream."""
    body = loop_range(graph)
    found = Body(graph, body).stream(2, len(body) - 3, rows)
    assert found is not None
    return with_streams(graph, [found])


ROW = 32 * 4 * 4  # bytes of a row of the map, of which there are 32
BLOCKS = {
    "one layer reads the row above the one that it makes": (("conv",), 1, (32 + 2) * ROW),
    "two layers: the second is late enough, and has three rows of the first": (("conv", "conv"), 1, (32 + 3) * ROW),
    "what is made is smaller": (("down",), 1, 32 * ROW + ROW // 2),
    "what is made is larger: the last row of it needs the last two": (("wide",), 1, (2 * 32 + 2) * ROW),
    "a sum in the place of the map, and the branch behind it": (("conv", "conv", "add"), 1, (32 + 1 + 3) * ROW),
    "four rows at a time, and the one above them": (("conv",), 4, (32 + 4 + 1) * ROW),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_result_is_written_over_what_it_is_made_from(name: str) -> None:
    layers, rows, wanted = BLOCKS[name]
    graph = behind_the_first(image(32, *layers), rows)
    made = program(graph)
    assert made.arena_bytes == wanted == arena.lower_bound(graph, BATCH)
    Machine(made.to_bytes())


def test_what_is_read_as_a_whole_or_later_is_not_written_over() -> None:
    graph = image(32, "conv", "conv")
    body = loop_range(graph)
    nodes = [graph.nodes[i] for i in body]
    first = next(n.outs[0] for n in nodes if n.op == "relu")
    late = replace(nodes[-2], ins=(nodes[-2].ins[0], nodes[-2].ins[1]))
    found = Body(graph, body).stream(2, 2, 1)
    assert found is not None
    y = nodes[3].outs[0]

    def apart(some: Sequence[Node]) -> int | None:
        return rows_apart(graph, some, found, str, y, first)

    assert apart(nodes[2:4]) == 0
    whole = replace(late, ins=(nodes[2].outs[0], first))  # as a weight
    assert apart([nodes[2], whole]) is None


def test_a_map_and_what_is_written_over_it_are_drawn_one_after_the_other() -> None:
    graph = behind_the_first(image(32, "conv", "conv", "add"))
    stored, const, state = arena.place_state([graph])
    layout = arena.place(graph, BATCH, stored, const, state)
    timeline = facts_of({"infer": graph}, {"infer": layout}, BATCH).entries["infer"]
    (both,) = (s for s in timeline.spans if ">" in s.tensor)
    new, old = both.tensor.split(">")
    found = [(tensor_text(s.tensor), s.first, s.last, s.bytes // ROW) for s in timeline.spans if s.tensor in (new, old)]
    first, end = both.first, both.last
    assert tensor_text(both.tensor) == f"{tensor_text(new)} over {tensor_text(old)}"
    assert found == [(tensor_text(old), 2, first - 1, 32), (tensor_text(new), end + 1, end + 1, 32)]
    assert both.bytes == 33 * ROW
    assert timeline.peak()[1] == layout.lower_bound_bytes


# -- against the definition ----------------------------------------------------------------------------------------


def candidates(graph: Graph, stream: Stream, span: range) -> Iterator[tuple[str, str]]:
    """Values that are read in a stream and made before it, and such that are made there as a whole."""
    families = Families(graph, ())
    families.join_rows()
    nodes = [graph.nodes[i] for i in span]
    made = {name for node in nodes for name in node.outs}
    whole = {name for name in made & families.in_body if stream.values[name].most == stream.values[name].count}
    before = {name for node in nodes for name in node.ins if name in families.in_body} - made
    tops = {families.root(name) for name in whole if stream.values[name].begin(stream.iterations) == 0}
    yield from ((families.root(x), y) for x in sorted(before) for y in sorted(tops))


def least_apart(graph: Graph, nodes: Sequence[Node], stream: Stream, x: str, y: str) -> int:
    """Step by step: the first byte of x that is read after a byte of y was written."""
    families = Families(graph, ())
    families.join_rows()
    events = []  # (what is written up to, or what is read from), in order
    for i in range(stream.iterations):
        for node in nodes:
            held = stream.values[node.outs[0]]
            begin, end = held.end(i - 1) if i else 0, held.end(i)
            rule = rule_of(graph, node)
            if begin == end or rule is None:
                continue
            for name in node.ins:
                if families.root(name) == x:
                    low = begin
                    if rule.kind == "window":
                        low = max(begin * rule.step - rule.pad, 0)
                    if rule.kind == "spread":
                        low = next(r for r in range(1 << 20) if r * rule.step - rule.pad + rule.reach > begin)
                    events.append(("reads", low * row_bytes(graph[name])))
            if families.root(node.outs[0]) == y:
                events.append(("writes", end * held.row_bytes))
    apart = written = 0
    for kind, at in events:
        written = at if kind == "writes" else written
        apart = max(apart, written - at if kind == "reads" else 0)
    return apart


def test_the_distance_is_what_the_definition_asks_for() -> None:
    tried = above = 0
    for seed in range(150):
        graph, rng = network(seed), random.Random(seed)
        found = random_streams(graph, rng)
        body = loop_range(graph)
        families = Families(with_streams(graph, found), ())
        families.join_rows()
        for span, stream in families.streams.items():
            nodes = [graph.nodes[i] for i in span]
            for x, y in candidates(families.graph, stream, span):
                one = rows_apart(graph, nodes, stream, families.root, y, x)
                if one is None:
                    continue
                least = least_apart(families.graph, nodes, stream, x, y)
                tried += 1
                above += one > least  # a node that reads and writes: it keeps rows of one turn apart
                assert one >= least, f"seed {seed}: {x} and {y}"
        assert body
    assert tried > 100
    assert above < 0.4 * tried


def test_a_result_that_is_one_unit_nearer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def nearer(graph: Graph, nodes: Sequence[Node], stream: Stream, *rest: object) -> list[Pair]:
        nonlocal tried
        found = pairs(graph, nodes, stream, *rest)  # type: ignore[arg-type]
        wrong = [replace(p, apart=p.apart - 16) if p.apart else p for p in found]
        tried += wrong != found
        return wrong

    monkeypatch.setattr(arena, "pairs", nearer)
    caught = whole = 0
    for seed in range(120):
        graph = network(seed)
        made = with_streams(graph, random_streams(graph, random.Random(seed)))
        before, whole = tried, whole + 1
        try:
            Machine(program(made).to_bytes())
            assert tried == before, f"seed {seed}"
        except (UnsafeLayout, BadProgram):
            caught += tried > before
    assert caught > 20
