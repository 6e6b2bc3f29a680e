"""Space: a fixed offset for every tensor. The only place where sharing of memory (in-place, views) is decided.

Lifetimes are positions in the flat node list; two tensors may share bytes only if their lifetimes are disjoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ... import ops
from ...ir import ALIGN, Graph, Node, Role, at
from ...ops.build import typed
from ..graph.alias import Families, ascends
from ..graph.joint import Pair, pairs
from ..graph.rows import marked
from .first_fit import Block, FirstFits, Part, first_fit, hasty, peak
from .layout import Layout, Region, Slot
from .solver import nearer, within

PAGE_ALIGN, CHECKSUM = 512, 4  # bytes, as in runtime/smidgen.h and kernels/page.c


def align_up(count: int, align: int) -> int:
    return -(-count // align) * align


def page_room(count: int) -> int:
    """What a tensor takes in PAGE: its checksum is behind it, whether a build compares it or not."""
    return align_up(align_up(count, 4) + CHECKSUM, PAGE_ALIGN)


def place_state(graphs: Iterable[Graph], align: int = ALIGN) -> tuple[dict[str, Slot], int, int]:
    """Slots of constants and state, shared by all entry points; returns them with the bytes of CONST and STATE."""
    slots: dict[str, Slot] = {}
    ends: dict[Region, int] = {"const": 0, "state": 0, "page": 0}
    for graph in graphs:
        changed = {o for node in graph.nodes if not ops.get(node.op).is_view for o in node.outs}
        for tensor in graph.tensors.values():
            if tensor.name in slots or tensor.name in changed:
                continue
            if tensor.role is not Role.CONST and not tensor.role.is_state:
                continue
            region: Region = "const" if tensor.role is Role.CONST else "page" if tensor.paged else "state"
            # A constant that several instructions read is stored once; sizes never depend on the batch.
            count = tensor.bytes(1)
            slots[tensor.name] = Slot(region, ends[region], count)
            ends[region] += page_room(count) if region == "page" else align_up(count, align)
    return slots, ends["const"], ends["state"]


def place(
    graph: Graph,
    batch: int,
    stored: Mapping[str, Slot],
    const_bytes: int,
    state_bytes: int,
    align: int = ALIGN,
    room_bytes: int | None = None,
) -> Layout:
    """Offsets in the arena for one entry point at its largest batch. What cannot be within `room_bytes` is not worth a
    search, and what is within them is low enough."""
    scratch = _scratch(graph, batch)
    families, birth, death = _families(graph, stored, batch, scratch, align)
    pinned, blocks = _blocks(families, birth, death, batch, scratch, align)
    pinned_end = sum(b.bytes for b in pinned)
    blocks, inside = joined(families, blocks, align)
    bound = pinned_end + peak(blocks)
    hopeless = room_bytes is not None and bound > room_bytes
    enough = max(bound, room_bytes or 0)
    if hopeless:
        offsets, top = hasty(blocks)
    else:
        offsets, top = _offsets(blocks, bound - pinned_end, enough - pinned_end, align)
    where: dict[str, int] = {}
    start = 0
    for block in pinned:
        where[block.name] = start
        start += block.bytes
    where |= {name: pinned_end + offset for name, offset in offsets.items()}
    where |= {name: where[block] + at for name, (block, at) in inside.items()}
    page_state = max((s.offset + page_room(s.bytes) for s in stored.values() if s.region == "page"), default=0)
    pages, page_top = first_fit(_pages(families, birth, death, batch))
    slots: dict[str, Slot] = {}
    for tensor in graph.tensors.values():
        if tensor.role in (Role.INPUT, Role.OUTPUT):
            continue
        root, stride = families.root(tensor.name), families.stride(tensor.name)
        count = families.bytes(tensor.name, batch)
        if root in stored:
            slots[tensor.name] = Slot(stored[root].region, stored[root].offset, count, stride)
        elif root in where:
            slots[tensor.name] = Slot("arena", where[root], count, stride)
        elif root in pages:
            slots[tensor.name] = Slot("page", page_state + pages[root], count)
    scratch_slots = {i: Slot("arena", where[f"scratch:{i}"], count) for i, count in scratch.items()}
    return Layout(
        slots, scratch_slots, const_bytes, state_bytes, pinned_end + top, bound, align,
        page_bytes=page_state + page_top, page_state_bytes=page_state,
    )  # fmt: skip


def _offsets(blocks: list[Block], bound: int, enough: int, align: int) -> tuple[dict[str, int], int]:
    """Offsets, and the end of the last block: at most `enough` if that is found, else as near to the bound as is."""
    fits = FirstFits(blocks, enough)
    offsets, top = fits.lowest()
    if top <= enough:
        return offsets, top
    found = within(blocks, enough, align)
    if found is not None:
        return found
    fits.again()
    offsets, top = fits.exchanged()
    return nearer(blocks, offsets, top, bound, align) if (top - bound) * 100 > bound == enough else (offsets, top)


def lower_bound(graph: Graph, batch: int, align: int = ALIGN) -> int:
    """The arena that this order of nodes needs at least, without searching for offsets."""
    stored, _, _ = place_state([graph], align)
    scratch = _scratch(graph, batch)
    families, birth, death = _families(graph, stored, batch, scratch, align)
    pinned, blocks = _blocks(families, birth, death, batch, scratch, align)
    return sum(b.bytes for b in pinned) + peak(joined(families, blocks, align)[0])


def outside_loop(graph: Graph, batch: int, align: int = ALIGN) -> int:
    """Bytes of what is there beside the loop, all the time that it runs."""
    stored, _, _ = place_state([graph], align)
    families, birth, death = _families(graph, stored, batch, {}, align)
    pinned, blocks = _blocks(families, birth, death, batch, {}, align)
    body, inside = families.body, families.in_body
    during = [b for b in blocks if b.name not in inside and b.birth < body.stop and b.death >= body.start]
    return sum(b.bytes for b in (*pinned, *during))


def _scratch(graph: Graph, batch: int) -> dict[int, int]:
    """Position → bytes of working memory that the node's kernel asks for, or keeps while its stream runs."""
    sizes = {
        i: int(at(record.scratch(typed(graph, node)), batch))
        for i, node in enumerate(graph.nodes)
        if (record := ops.get(node.op)).has_scratch
    }
    for mark in marked(graph):
        sizes |= mark.carries
    return {i: count for i, count in sizes.items() if count}


def _families(
    graph: Graph, stored: Mapping[str, Slot], batch: int, scratch: Mapping[int, int], align: int
) -> tuple[Families, dict[str, int], dict[str, int]]:
    """Join views, updates, gathered yields, and in-place operations where the input dies; with birth and death."""
    families = Families(graph, stored)
    for node in graph.nodes:
        for out, source in ops.get(node.op).shares.items():
            families.join(node.outs[out], node.ins[source])
        for gathered, piece in zip(node.outs, node.attrs.get("yields", ()), strict=False):
            families.join(gathered, piece)
    families.join_rows()
    birth, death = _lifetimes(families)
    for i, node in enumerate(graph.nodes):
        record = ops.get(node.op)
        for source in record.inplace if not families.is_streamed(i) and not record.shrinks else ():
            if _may_overwrite(families, node, source, death, i):
                taken, dying = families.root(node.outs[0]), families.root(node.ins[source])
                families.join(taken, dying)
                top = families.root(taken)
                birth[top] = min(birth[taken], birth[dying])
                death[top] = max(death[taken], death[dying])
                break
    _shrink(families, birth, death, batch, scratch, align)
    return families, birth, death


def _shrink(
    families: Families, birth: dict[str, int], death: dict[str, int], batch: int, scratch: Mapping[int, int], align: int
) -> None:
    """A part that is taken of a tensor in its place spares a copy, but then all of the memory lives as long as the
    part: done where less is alive at a time, from there to the part's end."""
    graph = families.graph
    found = [i for i, n in enumerate(graph.nodes) if ops.get(n.op).shrinks and ascends(graph, n.ins[1])]
    if not found:
        return
    alive = [0] * len(graph.nodes)
    for block in _blocks(families, birth, death, batch, scratch, align)[1]:
        for i in range(block.birth, block.death + 1):
            alive[i] += block.bytes
    for i in found:
        node = graph.nodes[i]
        part, whole = families.root(node.outs[0]), families.root(node.ins[0])
        if families.is_streamed(i) or not _may_overwrite(families, node, 0, death, i) or birth[part] != i:
            continue
        end = death[part]
        copied = align_up(families.bytes(part, batch), align)
        held = align_up(families.bytes(whole, batch), align)
        after = [alive[i] - copied, *(now + held - copied for now in alive[i + 1 : end + 1])]
        if max(after) < max(alive[i : end + 1]):
            alive[i : end + 1] = after
            families.join(whole, part)
            assert families.root(part) == whole
            death[whole] = end


def _lifetimes(families: Families) -> tuple[dict[str, int], dict[str, int]]:
    """First and last node that touches each family, or runs by turns with one that does."""
    birth: dict[str, int] = {}
    death: dict[str, int] = {}
    body = families.body
    for i, node in enumerate(families.graph.nodes):
        for name in (*node.ins, *node.outs):
            top, touched = families.root(name), families.touched(i, name)
            birth.setdefault(top, touched[0])
            # What lives outside the loop but is touched inside it stays until the last iteration ends.
            last = body[-1] if i in body and top not in families.in_body else touched[-1]
            death[top] = max(death.get(top, -1), last)
    return birth, death


def _may_overwrite(families: Families, node: Node, source: int, death: Mapping[str, int], position: int) -> bool:
    """May output 0 take the memory of this input, which nobody reads afterwards?"""
    graph = families.graph
    out, name = graph[node.outs[0]], graph[node.ins[source]]
    top = families.root(name.name)
    if top in families.stored or graph[top].role is not Role.VALUE or death[top] != position:
        return False
    alike = (out.shape, out.dtype) == (name.shape, name.dtype) or ops.get(node.op).shrinks
    if not alike or graph[top].size != name.size:
        return False
    if (name.name in families.in_body) != (out.name in families.in_body):
        return False
    # Other operands in the same memory would be read after being overwritten, unless they are walked alike.
    return all(other == name.name or families.root(other) != top for other in node.ins)


def _blocks(
    families: Families,
    birth: Mapping[str, int],
    death: Mapping[str, int],
    batch: int,
    scratch: Mapping[int, int],
    align: int,
) -> tuple[list[Block], list[Block]]:
    """What has to be placed: accumulators, which keep their place between entries, and everything else."""
    graph = families.graph
    pinned: list[Block] = []
    blocks: list[Block] = []
    for top in birth:
        tensor = graph[top]
        if tensor.role in (Role.INPUT, Role.OUTPUT) or top in families.stored or tensor.paged:
            continue
        block = Block(top, align_up(families.bytes(top, batch), align), birth[top], death[top])
        (pinned if tensor.role is Role.ACCUM else blocks).append(block)
    merged = [b for b in blocks if families.root(b.name) == b.name]
    for i, count in scratch.items():
        turns = families.turns(i) if i in families.carries else range(i, i + 1)
        merged.append(Block(f"scratch:{i}", align_up(count, align), turns[0], turns[-1]))
    return sorted(pinned, key=lambda b: b.name), merged


def joined(
    families: Families, blocks: Sequence[Block], align: int
) -> tuple[list[Block], dict[str, tuple[str, int]]]:  # fmt: skip
    """The blocks, of which some are one now: results of streams that are written over what these read. And of the
    values in it that do not name it the block, and where in it they are."""
    known = {b.name: b for b in blocks}
    over: dict[str, Pair] = {}  # value → what it is written over
    for span, stream in families.streams.items():
        nodes = [families.graph.nodes[i] for i in span]
        named = dict.fromkeys(families.root(name) for node in nodes for name in (*node.outs, *node.ins))
        alive = [known[name] for name in named if name in known and name in families.in_body]
        born = {b.name: b.bytes for b in alive if b.birth == span[0] and b.death > span[-1]}
        dying = {b.name: b.bytes for b in alive if b.birth < span[0] and b.death == span[-1]}
        over |= {p.over: p for p in pairs(families.graph, nodes, stream, families.root, align, born, dying)}
    made: list[Block] = []
    inside: dict[str, tuple[str, int]] = {}
    under = {pair.under for pair in over.values()}
    for block in blocks:
        if block.name in under:
            continue
        chain, at = [(block, 0)], 0
        while (pair := over.get(chain[-1][0].name)) is not None:
            at += pair.apart
            chain.append((known[pair.under], at))
        made.append(_as_one(chain) if len(chain) > 1 else block)
        inside |= {one.name: (block.name, at) for one, at in chain[1:]}
    return made, inside


def _as_one(chain: Sequence[tuple[Block, int]]) -> Block:
    """Blocks with their places, the last first: each is alive to the end of the stream in which the next is born."""
    parts: list[Part] = []
    end = chain[0][0].death
    for (late, low), (early, high) in pairwise(chain):
        parts.append(Part(low, late.bytes, early.death + 1, end))
        parts.append(Part(low, max(high + early.bytes - low, late.bytes), late.birth, early.death))
        end = late.birth - 1
    first, at = chain[-1]
    parts.append(Part(at, first.bytes, first.birth, end))
    some = tuple(p for p in reversed(parts) if p.birth <= p.death)
    return Block(chain[0][0].name, max(p.at + p.bytes for p in some), first.birth, chain[0][0].death, some)


def _pages(
    families: Families, birth: Mapping[str, int], death: Mapping[str, int], batch: int
) -> list[Block]:  # fmt: skip
    """What one step keeps in PAGE, the largest first. There is no shortage there, so nothing is searched for."""
    tops = [top for top in birth if families.graph[top].paged and top not in families.stored]
    blocks = [Block(top, page_room(families.graph[top].bytes(batch)), birth[top], death[top]) for top in tops]
    return sorted(blocks, key=lambda b: (-b.bytes, b.birth))
