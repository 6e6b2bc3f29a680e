"""Proof that a program's memory is safe. Trusts neither the planner's lifetimes nor its sizes: it replays the
instructions on a shadow memory in which every byte carries the value that was last written there.

Extents come from the C kernels, addresses from the encoded program, meaning from the graph.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..errors import UnsafeLayout
from ..ir import Graph, Node, Role, Tensor, samples
from ..ops.build import typed
from ..ops.optim import FIRST
from ..program.instructions import Instruction, Word
from ..program.program import Program
from ..runtime import library
from .graph.rows import of_one, streams
from .place.arena import CHECKSUM, align_up
from .place.layout import Layout
from .verify_rows import Stream

NOBODY = 0
Extents = dict[tuple[str, tuple[Word, ...], int, int, tuple[int, int, int]], Sequence[int] | None]
"""Kernel, parameters, samples, operands and run → bytes of each operand; None if the kernel refuses the parameters."""


@dataclass(frozen=True, slots=True)
class Access:
    """One operand of one instruction. `tensor` is empty for scratch."""

    tensor: str
    kind: str  # o writes, i reads, u updates, s scratch
    region: str
    start: int
    bytes: int

    @property
    def end(self) -> int:
        return self.start + self.bytes

    def overlaps(self, other: Access) -> bool:
        return self.region == other.region and self.start < other.end and other.start < self.end


class _Shadow:
    """What each byte of a region carries, as stretches of equal bytes: a plan has gigabytes, but few of those."""

    def __init__(self) -> None:
        self._starts, self._values = [0], [NOBODY]  # the last stretch has no end

    def read(self, start: int, count: int) -> list[int]:
        """The values found there, in order."""
        if not count:
            return []
        return self._values[bisect_right(self._starts, start) - 1 : bisect_left(self._starts, start + count)]

    def write(self, start: int, count: int, value: int) -> None:
        if count:
            first, behind = self._cut(start), self._cut(start + count)
            self._starts[first:behind], self._values[first:behind] = [start], [value]

    def _cut(self, at: int) -> int:
        """The number of the stretch that starts there, from now on."""
        k = bisect_left(self._starts, at)
        if k == len(self._starts) or self._starts[k] != at:
            self._starts.insert(k, at)
            self._values.insert(k, self._values[k - 1])
        return k


def verify(program: Program, graphs: Mapping[str, Graph], layouts: Mapping[str, Layout]) -> None:
    """Raise UnsafeLayout unless every entry, for one sample and for a full batch, reads only what it means to read."""
    _check_shared_places(graphs, layouts)
    known: Extents = {}
    for entry, graph in graphs.items():
        for n in sorted({1, samples(graph, program.batch)}):
            Replay(program, entry, graph, layouts[entry], n, known).run()


def _check_shared_places(graphs: Mapping[str, Graph], layouts: Mapping[str, Layout]) -> None:
    """What outlives an entry is at the same place in all of them."""
    places: dict[str, tuple[str, int]] = {}
    for entry, graph in graphs.items():
        for tensor in graph.tensors.values():
            if tensor.role in (Role.ACCUM, Role.CONST) or tensor.role.is_state:
                slot = layouts[entry].slots[tensor.name]
                if places.setdefault(tensor.name, (slot.region, slot.offset)) != (slot.region, slot.offset):
                    raise UnsafeLayout(f"'{tensor.name}' is at another place in '{entry}' than elsewhere")


class Replay:
    """One entry, run once for n samples, values reduced to their identity."""

    def __init__(
        self, program: Program, entry: str, graph: Graph, layout: Layout, n: int, known: Extents
    ) -> None:  # fmt: skip
        self.program, self.entry, self.graph, self.n, self.known = program, entry, graph, n, known
        self.slots = layout.slots  # where state and gathered tensors claim to be; checked against the instructions
        self.sizes = {
            "const": program.const_bytes, "state": program.state_bytes, "arena": program.arena_bytes,
            "page": program.page_bytes,
        }  # fmt: skip
        self.shadow = {region: _Shadow() for region in self.sizes}  # of constants, places are compared, not replayed
        self.ids: dict[tuple[str, int, int], int] = {}  # (tensor, loop iteration or -1, row or -1) → identity of it
        self.shows: dict[str, str] = {}  # view → tensor
        self.body_tensors: set[str] = set()
        self.index = -1
        self.position = 0
        self.written: set[tuple[int, ...]] = set()  # (buffer, sample), in a stream with a row, of the caller's outputs
        self.started: list[tuple[Access, Access]] = []  # memory that is being filled, and the page it comes from

    def run(self) -> None:
        steps = list(self.program.entry_code(self.entry))
        self._load_state()
        cursor = 0
        position = 0
        while position < len(self.graph.nodes):
            node = self.graph.nodes[position]
            self.position = position
            if ops.is_loop(node):
                body = self.graph.nodes[position + 1 : position + 1 + node.attrs["body"]]
                cursor = self._loop(node, body, steps, cursor)
                position += len(body)
            elif ops.is_stream(node):
                cursor = self._one_sample(node, position, steps, cursor)
                position += node.attrs["body"]
            elif not self._view(node):
                self._step(node, self._at(steps, cursor, node), self.n)
                cursor += 1
            position += 1
        if cursor != len(steps):
            raise UnsafeLayout(f"entry '{self.entry}' has {len(steps) - cursor} instructions without a node")
        if self.started:
            raise UnsafeLayout(f"'{self.started[0][0].tensor}' may arrive after the end of '{self.entry}'")
        self._check_state_at_the_end()

    # -- what values are called ------------------------------------------------------------------------------

    def value(self, tensor: str) -> int:
        tensor = self.base(tensor)
        key = (tensor, self.index if tensor in self.body_tensors else -1, -1)
        return self.ids.setdefault(key, len(self.ids) + 1)

    def base(self, tensor: str) -> str:
        """What a view is of."""
        while tensor in self.shows:
            tensor = self.shows[tensor]
        return tensor

    def row_value(self, tensor: str, row: int) -> int:
        """In a stream."""
        return self.ids.setdefault((tensor, self.index, row), len(self.ids) + 1)

    def _called(self, ident: int) -> str:
        found = next((key for key, i in self.ids.items() if i == ident), ("nothing", -1, -1))
        return f"'{found[0]}'" + (f" of sample {found[1]}" if found[1] >= 0 else "")

    def _view(self, node: Node) -> bool:
        if ops.get(node.op).is_view:
            self.shows[node.outs[0]] = node.ins[0]
            return True
        return False

    # -- replay ----------------------------------------------------------------------------------------------

    def _loop(self, loop: Node, body: Sequence[Node], steps: Sequence[Instruction], cursor: int) -> int:
        found = {stream.first: stream.nodes for stream in streams(self.graph, loop)}
        working = sum(not ops.get(node.op).is_view for node in body) + len(found)
        head = self._at(steps, cursor, loop)
        if head != Instruction("", body=working, count=int(bool(loop.attrs.get("once")))):
            raise self.unsafe("the program's loop is not the graph's", loop, "")
        self.body_tensors = {o for node in body for o in node.outs}
        for index in range(self.n):
            self.index, at_, k = index, cursor + 1, 0
            while k < len(body):
                if k in found:
                    at_ = self._stream(self.graph, body, k, found[k], steps, at_)
                    k += found[k]
                    continue
                if not self._view(body[k]):
                    self._step(body[k], self._at(steps, at_, body[k]), 1)
                    at_ += 1
                k += 1
        for gathered, piece in zip(loop.outs, loop.attrs["yields"], strict=True):
            self._gather(loop, gathered, piece)
        self.index = -1
        return cursor + 1 + working

    def _one_sample(self, node: Node, position: int, steps: Sequence[Instruction], cursor: int) -> int:
        """A stream outside of loops: in a loop over the one sample that there is."""
        graph = of_one(self.graph)
        body = graph.nodes[position + 1 : position + 1 + node.attrs["body"]]
        working = 1 + sum(not ops.get(one.op).is_view for one in body)
        if self.n != 1 or self._at(steps, cursor, node) != Instruction("", body=working):
            raise self.unsafe("the program's loop is not the graph's", node)
        self.index = 0
        cursor = self._stream(graph, body, 0, len(body), steps, cursor + 1)
        self.index = -1
        return cursor

    def _stream(
        self, graph: Graph, body: Sequence[Node], first: int, count: int, steps: Sequence[Instruction], at_: int
    ) -> int:  # fmt: skip
        """Row by row for the first sample and the last one; those between them move by the same strides."""
        nodes = body[first : first + count]
        working = [node for node in nodes if not self._view(node)]
        self.position = graph.nodes.index(nodes[0])
        head = self._at(steps, at_, nodes[0])
        stream = Stream(self, graph, working, head, steps[at_ + 1 : at_ + 1 + len(working)])
        made = {node.outs[0] for node in nodes if self.base(node.outs[0]) in {n.outs[0] for n in working}}
        inside = {out for node in nodes for out in node.outs}
        others = [n for n in self.graph.nodes if not inside.intersection(n.outs)]
        wholes = [t for t in made if self.graph[t].role is Role.VALUE
                  and any(t in n.ins or t in n.attrs.get("yields", ()) for n in others)]  # fmt: skip
        if self.index in (0, self.n - 1):
            stream.replay()
            stream.finish(sorted(wholes))
        else:
            for name in wholes:
                stream.write_whole(name)
        return at_ + 1 + len(working)

    def kernel_needs(self, step: Instruction, params: Sequence[int], run: tuple[int, int, int]) -> Sequence[int] | None:
        asked = step.kernel, tuple(params), 0, len(step.operands), run
        if asked not in self.known:
            self.known[asked] = library.kernel_needs(step.kernel, list(params), len(step.operands), run)
        return self.known[asked]

    def check_region(self, node: Node, name: str, region: str, start: int, count: int) -> None:
        self._check_bounds(node, Access(name, "i", region, start, count))

    def check_whole(self, node: Node, name: str, region: str, start: int, count: int) -> None:
        """What is not made in the stream."""
        self._check_read(node, Access(name, "i", region, start, count))

    def write_outside(self, node: Node, name: str, buffer: int, row: int) -> None:
        if (key := (buffer, self.index, row)) in self.written:
            raise self.unsafe(f"output '{name}' is written twice", node, "")
        self.written.add(key)

    def _gather(self, loop: Node, gathered: str, piece: str) -> None:
        """After the last iteration every sample's piece must stand at its place in the gathered tensor."""
        slot = self.slots[gathered]
        per_sample = self.graph[gathered].bytes(1)
        for index in range(self.n):
            self.index = index
            wanted = self.value(piece)
            part = self.shadow[slot.region].read(slot.offset + self.index * per_sample, per_sample)
            if any(value != wanted for value in part):
                raise self.unsafe(f"'{gathered}' lost sample {self.index}", loop, self._found(part, wanted))
        self.shadow[slot.region].write(slot.offset, self.n * per_sample, self.value(gathered))

    def _step(self, node: Node, step: Instruction, n: int) -> None:
        accesses = self._accesses(node, step, n)
        for a in accesses:
            self._check_bounds(node, a)
        self._check_overlaps(node, accesses)
        page = ops.get(node.op).page
        if page == "wait":
            self._arrive(node, *accesses)
        self._check_started(node, accesses)
        if page == "start":
            self._check_read(node, accesses[1])
            self.shadow[accesses[0].region].write(accesses[0].start, accesses[0].bytes, NOBODY)
            self.started.append((accesses[0], accesses[1]))
            return
        for a in accesses:
            if a.kind in "iu":
                self._check_read(node, a)
        for a in accesses:
            if a.kind in "ou":
                self._write(node, a)
            elif a.kind == "s" and a.region in self.shadow:
                self.shadow[a.region].write(a.start, a.bytes, NOBODY)

    def _arrive(self, node: Node, to: Access, page: Access) -> None:
        """What was started is there now, if it is the same memory and the same page, and both are as they were."""
        same = [(t, p) for t, p in self.started if (t.region, t.start, t.bytes) == (to.region, to.start, to.bytes)]
        pair = same[0] if same else None
        if pair is None or (pair[1].start, pair[1].bytes) != (page.start, page.bytes):
            raise self.unsafe(f"'{to.tensor}' is waited for, but was not started", node, "")
        self.started.remove(pair)
        self._check_read(node, page)
        self.shadow[to.region].write(to.start, to.bytes, self.value(self._before(node, to.tensor)))

    def _check_started(self, node: Node, accesses: Sequence[Access]) -> None:
        """A page arrives at any time between start and wait."""
        for a in accesses:
            for to, page in self.started:
                if a.overlaps(to) or (a.kind in "ou" and a.overlaps(page)):
                    name = a.tensor or "scratch"
                    raise self.unsafe(f"'{name}' meets '{to.tensor}', which is on its way from its page", node, "")

    def _accesses(self, node: Node, step: Instruction, n: int) -> list[Access]:
        """The instruction's operands beside the tensors that the node says they are."""
        record = ops.get(node.op)
        kernel = record.kernel(typed(self.graph, node))
        if step.kernel != kernel:
            raise self.unsafe(f"kernel '{step.kernel}' where '{kernel}' is meant", node, "")
        shared = {node.ins[i] for i in record.shares.values()}
        kinds = ["u" if k in record.shares else "o" for k in range(len(node.outs))]
        names = [*node.outs, *(i for i in node.ins if i not in shared)]
        kinds += ["i"] * (len(names) - len(kinds))
        extra = len(step.operands) - len(names)
        names, kinds = names + [""] * extra, kinds + ["s"] * extra
        run = (n if self.index < 0 else self.n, self.n, max(self.index, 0))
        needs = self._needs(kernel, step, n, run)
        if extra not in (0, 1) or needs is None:
            raise self.unsafe(f"kernel '{kernel}' refuses its parameters", node, "")
        if step.guard or step.unit or any(op.outer for op in step.operands):
            raise self.unsafe(f"kernel '{kernel}' has a guard, a unit or strides of outer loops", node, "")
        index = max(self.index, 0)
        found = [
            Access(name, kind, op.region, op.offset + index * op.stride, need)
            for name, kind, op, need in zip(names, kinds, step.operands, needs, strict=True)
        ]
        if record.in_part and FIRST in node.attrs:
            found[: len(node.outs)] = [self._whole(node, a) for a in found[: len(node.outs)]]
        return found

    def _whole(self, node: Node, part: Access) -> Access:
        """All of a tensor of which a part is updated: the rest has to be there, and is the new value's as it is."""
        tensor = self.graph[part.tensor]
        count, first = tensor.bytes(1), node.attrs[FIRST] * tensor.bytes(1) // int(tensor.shape[0])  # type: ignore[arg-type]
        if first + part.bytes > count:
            raise self.unsafe(f"a part of '{tensor.name}' ends {first + part.bytes - count} bytes behind it", node, "")
        return Access(part.tensor, part.kind, part.region, part.start - first, count)

    def _needs(self, kernel: str, step: Instruction, n: int, run: tuple[int, int, int]) -> Sequence[int] | None:
        """Bytes that the kernel declares for each operand, asked for once: networks repeat their layers."""
        asked = kernel, step.params, n, len(step.operands), run
        if asked not in self.known:
            self.known[asked] = library.kernel_needs(kernel, step.params_at(n), len(step.operands), run)
        return self.known[asked]

    # -- the proofs ------------------------------------------------------------------------------------------

    def _check_bounds(self, node: Node, a: Access) -> None:
        if a.region in self.sizes:
            if a.start < 0 or a.end > self.sizes[a.region]:
                why = f"{a.region.upper()} has {self.sizes[a.region]} bytes, '{a.tensor}' ends at {a.end}"
                raise self.unsafe("an access outside its region", node, why)
            if a.kind in "ous" and a.region == "const":
                raise self.unsafe(f"'{a.tensor}' is written to CONST", node, "")

    def _check_overlaps(self, node: Node, accesses: Sequence[Access]) -> None:
        """What is written may meet another operand only where the op says that it can work in place."""
        record = ops.get(node.op)
        allowed = {node.ins[i] for i in record.inplace}
        for k, a in enumerate(accesses):
            for other in accesses[k + 1 :]:
                if (a.kind == "i" and other.kind == "i") or not a.overlaps(other):
                    continue
                fits = a.bytes <= other.bytes and self._ascends(node) if record.shrinks else a.bytes == other.bytes
                in_place = a is accesses[0] and a.start == other.start and fits
                if not (in_place and other.kind == "i" and other.tensor in allowed):
                    raise self.unsafe(f"'{a.tensor}' and '{other.tensor or 'scratch'}' overlap", node, "")

    def _ascends(self, node: Node) -> bool:
        """Is the list of indices known to ascend? Then nothing is written over that is still to be read."""
        index = self.graph[node.ins[1]]
        places = np.asarray(self.graph.data[index.name]) if index.role is Role.CONST else np.zeros(2)
        return bool(places[0] >= 0 and (np.diff(places) > 0).all())

    def _check_read(self, node: Node, a: Access) -> None:
        if a.region not in self.shadow:
            return
        tensor = a.tensor if a.kind == "i" else self._before(node, a.tensor)
        if a.region == "const":
            while tensor in self.shows:
                tensor = self.shows[tensor]
            slot = self.slots[tensor]
            if (a.start, slot.region) != (slot.offset, "const") or a.bytes > self.graph[tensor].bytes(1):
                raise self.unsafe(f"constant '{tensor}' is read where it is not", node, "")
            return
        part, wanted = self.shadow[a.region].read(a.start, a.bytes), self.value(tensor)
        if any(value != wanted for value in part):
            raise self.unsafe(f"'{tensor}' is overwritten before it is read", node, self._found(part, wanted))

    def _before(self, node: Node, out: str) -> str:
        return node.ins[ops.get(node.op).shares[node.outs.index(out)]]

    def _write(self, node: Node, a: Access) -> None:
        if a.region in self.shadow:
            self.shadow[a.region].write(a.start, a.bytes, self.value(a.tensor))
        elif (key := (a.start, self.index)) in self.written:
            raise self.unsafe(f"output '{a.tensor}' is written twice", node, "")
        else:
            self.written.add(key)

    def _kept(self) -> list[Tensor]:
        """What outlives the entry: state, and accumulators."""
        given = [t for t in self.graph.tensors.values() if t.role is Role.ACCUM or t.role.is_state]
        made = {out for node in self.graph.nodes for out in node.outs}
        return [t for t in given if t.name not in made]

    def _load_state(self) -> None:
        """At the start every tensor that outlives the entry stands at its own place, and so does every constant. Behind
        what is in PAGE there is its checksum, which some builds read."""
        for tensor in self._kept():
            slot, count = self.slots[tensor.name], tensor.bytes(1)
            count = align_up(count, 4) + CHECKSUM if slot.region == "page" else count
            part = self.shadow[slot.region].read(slot.offset, count)
            if any(value != NOBODY for value in part):
                raise UnsafeLayout(f"'{tensor.name}' and {self._called(max(part))} share memory")
            self.shadow[slot.region].write(slot.offset, count, self.value(tensor.name))
        end, before = 0, ""
        for tensor in sorted(self.graph.of_role(Role.CONST), key=lambda t: self.slots[t.name].offset):
            start, count = self.slots[tensor.name].offset, tensor.bytes(1)
            if start < end and count:
                raise UnsafeLayout(f"constants '{before}' and '{tensor.name}' overlap")
            stored = np.asarray(self.graph.data[tensor.name]).astype(tensor.dtype.numpy).tobytes()
            if self.program.const[start : start + count] != stored:
                raise UnsafeLayout(f"constant '{tensor.name}' is not what the program holds at its place")
            end, before = start + count, tensor.name

    def _check_state_at_the_end(self) -> None:
        """Every tensor that outlives the entry, or what an update made of it, still stands whole at its place."""
        kept = self._kept()
        origin = {t.name: t.name for t in kept}  # what is there now → the tensor that it was made of
        for node in self.graph.nodes:
            shares = {} if ops.get(node.op).is_view else ops.get(node.op).shares
            made = {node.outs[out]: origin.pop(node.ins[i]) for out, i in shares.items() if node.ins[i] in origin}
            origin |= made
        newest = {first: latest for latest, first in origin.items()}
        for tensor in kept:
            slot, wanted = self.slots[tensor.name], self.value(newest[tensor.name])
            part = self.shadow[slot.region].read(slot.offset, tensor.bytes(1))
            if any(value != wanted for value in part):
                raise UnsafeLayout(f"'{tensor.name}' is damaged", why=self._found(part, wanted))

    # -- helpers ---------------------------------------------------------------------------------------------

    def _at(self, steps: Sequence[Instruction], cursor: int, node: Node) -> Instruction:
        if cursor >= len(steps):
            raise self.unsafe("the program ends before the graph", node, "")
        return steps[cursor]

    def _found(self, part: Sequence[int], wanted: int) -> str:
        return f"found {self._called(next(value for value in part if value != wanted))} there"

    def unsafe(self, what: str, node: Node, why: str = "") -> UnsafeLayout:
        place = f"{node.src or node.op} ({self.entry}, node {self.position} '{node.op}', {self.n} samples)"
        return UnsafeLayout(what, at=place, why=why, help="a bug in smidgen's planner: please report the model")
