"""From graphs with their places to a program: nodes become instructions, values the initial CONST and STATE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from .. import ops
from ..errors import BadShape, DoesNotFit, Internal
from ..ir import Array, Batch, Graph, Node, Role, Tensor, at
from ..ops.build import typed
from ..ops.optim import FIRST
from ..ops.registry import Param
from ..ops.traits import Rows
from ..program.buffer import MAX_RANK, Buffer
from ..program.instructions import (
    MAX_OPERANDS,
    MAX_PARAMS,
    Entry,
    Instruction,
    Operand,
    OperandRegion,
    StreamTable,
    Word,
)
from ..program.program import Program, checked_meta, trimmed
from ..program.reader import REGION_BYTES
from .graph.rows import (
    Held,
    Marked,
    Stream,
    marked,
    of_rows,
    row_bytes,
    rows_of,
    rule_of,
    shared_rows,
    streamed_inputs,
    streams,
)  # fmt: skip
from .place.layout import Layout, Slot

KINDS: Final = ("each", "window", "spread", "placed", "adds")
FORGETS: Final = 16  # as in runtime/rows.h: rows that nobody needs are forgotten before new ones are made


def encode(entries: Mapping[str, tuple[Graph, Layout]], batch: int, meta: Mapping[str, Any]) -> Program:
    """Constants and state are shared by name among entries and lie at the same place in each."""
    layouts = [layout for _, layout in entries.values()]
    sizes = {
        "const": max((layout.const_bytes for layout in layouts), default=0),
        "state": max((layout.state_bytes for layout in layouts), default=0),
        "arena": max((layout.arena_bytes for layout in layouts), default=0),
        "page": max((layout.page_bytes for layout in layouts), default=0),
    }
    page_state_bytes = max((layout.page_state_bytes for layout in layouts), default=0)
    for region, size in sizes.items():
        if size > REGION_BYTES:
            raise DoesNotFit(f"{region.upper()} needs {size} bytes, a program can address {REGION_BYTES}")
    images = {region: np.zeros(sizes[region], np.uint8) for region in ("const", "state")}
    images["page"] = np.zeros(page_state_bytes, np.uint8)
    stored: dict[str, Slot] = {}
    coded: dict[str, Entry] = {}
    for name, (graph, layout) in entries.items():
        for tensor in graph.of_role(Role.CONST, Role.PARAM, Role.OPTIM, Role.STAT, Role.SETTING):
            if tensor.name in graph.data and tensor.name in layout.slots:
                slot = layout.slots[tensor.name]
                if stored.setdefault(tensor.name, slot) != slot:
                    raise Internal(f"'{tensor.name}' lies at different places in different entry points")
                _store(images[slot.region], slot, tensor, graph.data[tensor.name])
        coded[name] = EntryCoder(name, graph, layout, batch).entry()
    return Program(
        batch=batch,
        align=max((layout.align for layout in layouts), default=4),
        entries=coded,
        const=images["const"].tobytes(),
        state=trimmed(images["state"].data),
        state_bytes=sizes["state"],
        arena_bytes=sizes["arena"],
        meta=checked_meta(meta),
        page=trimmed(bytes(images["page"])),
        page_state_bytes=page_state_bytes,
        page_bytes=sizes["page"],
    )


def _store(image: Array, slot: Slot, tensor: Tensor, value: Array) -> None:
    with np.errstate(over="ignore"):  # beyond the largest f32 is infinity
        data = np.ascontiguousarray(value, dtype=tensor.dtype.numpy.newbyteorder("<")).reshape(-1).view(np.uint8)
    if len(data) != tensor.bytes(1) or slot.offset + len(data) > len(image):
        raise Internal(f"the value of '{tensor.name}' does not fill its slot")
    if data.any():  # memory that is never touched costs nothing, and optimizers start with zeros
        image[slot.offset : slot.offset + len(data)] = data


class EntryCoder:
    """Nodes → instructions. Views yield none; operands are outputs, inputs that no output shares, scratch."""

    def __init__(self, name: str, graph: Graph, layout: Layout, batch: int) -> None:
        self.name, self.graph, self.layout, self.batch = name, graph, layout, batch
        self.outside = {t: i for i, t in enumerate((*graph.inputs, *graph.outputs))}
        self.held: dict[str, Held] = {}
        self.marks = {mark.nodes.start: mark for mark in marked(graph)}
        if self.marks and batch != 1:
            raise Internal("a stream of one sample in a program for several", at=name)

    def entry(self) -> Entry:
        feeds = [node for node in self.graph.nodes if ops.border(node) == "in"]
        stands = {node.ins[0]: node.attrs["stands"] for node in feeds if "stands" in node.attrs}
        buffers = tuple(
            Buffer(t, self.graph[t].dtype, self.graph[t].shape, "input" if i < len(self.graph.inputs) else "output",
                   *stands.get(t, ()))
            for t, i in self.outside.items()
        )  # fmt: skip
        for buffer in buffers:
            if len(buffer.dims) > MAX_RANK:
                raise BadShape(
                    f"'{buffer.name}' has {len(buffer.dims)} axes, at most {MAX_RANK} are possible",
                    why="a program file has room for that many", help="flatten axes before, and unflatten them inside",
                )  # fmt: skip
        return Entry(buffers, tuple(self._code()))

    def _code(self) -> Iterator[Instruction]:
        position = 0
        while position < len(self.graph.nodes):
            node = self.graph.nodes[position]
            if ops.is_loop(node):
                body = range(position + 1, position + 1 + node.attrs["body"])
                found = streams(self.graph, node)
                self.held = {name: held for stream in found for name, held in stream.values.items()}
                inner = list(self._body(body, found))
                if inner:
                    yield Instruction("", body=len(inner), count=int(bool(node.attrs.get("once"))))
                    yield from inner
                position += len(body)
            elif ops.is_stream(node):
                yield from self._one_sample(self.marks[position + 1])
                position += node.attrs["body"]
            else:
                yield from self._step(position, False)
            position += 1

    def _one_sample(self, mark: Marked) -> Iterator[Instruction]:
        """A stream outside of loops: streams are in loops over samples, of which there is one."""
        coder = EntryCoder(self.name, mark.graph, self.layout, self.batch)
        coder.held = dict(mark.stream.values)
        inner = list(coder._stream(mark.nodes, mark.stream))
        if inner:
            yield Instruction("", body=len(inner))
            yield from inner

    def _body(self, body: range, found: Sequence[Stream]) -> Iterator[Instruction]:
        """Of the loop: streams, and nodes between them."""
        position = body.start
        for stream in found:
            first = body.start + stream.first
            for i in range(position, first):
                yield from self._step(i, True)
            yield from self._stream(range(first, first + stream.nodes), stream)
            position = first + stream.nodes
        for i in range(position, body.stop):
            yield from self._step(i, True)

    def _stream(self, nodes: range, stream: Stream) -> Iterator[Instruction]:
        values: dict[tuple[int, ...], int] = {}
        shared = dict(shared_rows(self.graph, [self.graph.nodes[i] for i in nodes]))
        rules, steps = [], list[Instruction]()
        for i in nodes:
            node = self.graph.nodes[i]
            for step in self._step(i, True):
                rule = rule_of(self.graph, node)
                assert rule is not None
                moves = self._moves(node, rule, stream)
                operands = [replace(o, rows=values.setdefault(m, len(values)) + 1 if m else 0)
                            for o, m in zip_longest(step.operands, moves)]  # fmt: skip
                params, kernel = self._row_params(i, rule, step), rule.kernel or step.kernel
                steps.append(replace(step, kernel=kernel, operands=tuple(operands), params=params))
                keeps = node.outs[0] in shared or rule.kind == "adds"
                rules.append((KINDS.index(rule.kind) | (0 if keeps else FORGETS), *rule.plain))
        if steps:
            table = StreamTable(stream.iterations, tuple(values), tuple(rules)).words
            yield Instruction("", body=len(steps), table=table)
            yield from steps

    def _moves(self, node: Node, rule: Rows, stream: Stream) -> list[tuple[int, ...]]:
        """How each operand moves; empty if it stays."""
        by_rows, found = {0, *(1 + k for k in streamed_inputs(self.graph, node))}, list[tuple[int, ...]]()
        for k, name in enumerate((*node.outs, *node.ins)):
            if k not in by_rows:
                found.append(())
                continue
            step = rule.outside_bytes if name in self.outside else row_bytes(self.graph[name])
            v = stream.values.get(name)
            if v is not None:
                step = 0 if rule.kind == "adds" and not k else step
                found.append((v.count, v.step, v.period, v.ahead, v.kept, step))
            else:
                rows = rows_of(self.graph[node.outs[0] if name in self.outside else name])
                found.append((rows, 0, 1, rows, 0, step))
        return found

    def _row_params(self, position: int, rule: Rows, step: Instruction) -> tuple[Word, ...]:
        """A window is told of rows when it is run; all else is done for rows as for samples."""
        if rule.kind == "adds" and rule.params is not None:
            return tuple(self._word(p, position) for p in rule.params)
        if rule.kind != "each":
            return step.params
        record, call = ops.get(self.graph.nodes[position].op), of_rows(self.graph, self.graph.nodes[position])
        params = record.params(call) if rule.params is None else rule.params
        return tuple(self._word(p, position) for p in params)

    def _step(self, position: int, in_loop: bool) -> Iterator[Instruction]:
        node = self.graph.nodes[position]
        record = ops.get(node.op)
        if ops.is_loop(node):
            raise Internal("a loop inside a loop", at=self._where(position))
        for out, source in record.shares.items():
            one, other = node.outs[out], node.ins[source]
            if _at_slot(self._slot(one)) != _at_slot(self._slot(other)):
                raise Internal(f"'{one}' and '{other}' must share memory", at=self._where(position))
        if record.is_view:
            return
        call = typed(self.graph, node)
        kept = [i for k, i in enumerate(node.ins) if k not in record.shares.values()]
        operands = [self._operand(node, t, in_loop) for t in (*node.outs, *kept)]
        if behind := part_bytes(self.graph, node):
            operands[: len(node.outs)] = [
                replace(o, offset=o.offset + b) for o, b in zip(operands, behind, strict=False)
            ]
        scratch = int(at(record.scratch(call), self.batch)) if record.has_scratch else 0
        if scratch:
            slot = self.layout.scratch[position]
            if slot.bytes < scratch:
                raise Internal(f"{slot.bytes} bytes of scratch, {scratch} needed", at=self._where(position))
            operands.append(_at_slot(slot))
        elif position in self.layout.scratch and self.held:  # what a sum keeps from call to call
            operands.append(_at_slot(self.layout.scratch[position]))
        params = tuple(self._word(p, position) for p in record.params(call))
        if len(params) > MAX_PARAMS or len(operands) > MAX_OPERANDS:
            raise BadShape(
                f"'{node.op}' takes {len(operands)} operands and {len(params)} parameters", at=self._where(position),
                why=f"the runtime allows {MAX_OPERANDS} and {MAX_PARAMS}", help="cut it into smaller operations",
            )  # fmt: skip
        yield Instruction(record.kernel(call), tuple(operands), params)

    def _operand(self, node: Node, name: str, in_loop: bool) -> Operand:
        tensor = self.graph[name]
        if name in self.outside:
            sample = in_loop and node.attrs.get("sample")
            region: OperandRegion = "input" if tensor.role is Role.INPUT else "output"
            return Operand(region, self.outside[name], tensor.bytes(1) if sample else 0)
        slot = self._slot(name)
        held = self.held.get(name)
        wanted = held.bytes if held and held.row_bytes else tensor.bytes(self.batch)
        if slot.bytes < wanted:
            raise Internal(f"'{name}' needs {wanted} bytes, its slot has {slot.bytes}")
        found = _at_slot(slot)
        return found if in_loop or not slot.stride else Operand(found.region, found.offset)

    def _slot(self, name: str) -> Slot:
        if name not in self.layout.slots:
            raise Internal(f"'{name}' has no place in memory", at=self.name)
        return self.layout.slots[name]

    def _word(self, value: Param, position: int) -> Word:
        """Floats become their f32 bits."""
        if isinstance(value, (float, np.floating)):
            return int(np.float32(value).view(np.int32))
        largest = value.times * self.batch if isinstance(value, Batch) else int(value)
        if not -(2**31) <= largest < 2**31:
            raise BadShape(
                f"a size of {largest} does not fit 32 bits", at=self._where(position),
                why="instructions hold sizes of 32 bits", help="a smaller batch or input",
            )  # fmt: skip
        return value if isinstance(value, Batch) else int(value)

    def _where(self, position: int) -> str:
        node = self.graph.nodes[position]
        return f"{node.src or node.op} ({self.name}, node {position} '{node.op}')"


def part_bytes(graph: Graph, node: Node) -> list[int]:
    """Of an update in part: how many bytes behind the beginning of each result its part begins."""
    if not ops.get(node.op).in_part or FIRST not in node.attrs:
        return []
    found = [node.attrs[FIRST] * graph[out].bytes(1) // int(graph[out].shape[0]) for out in node.outs]  # type: ignore[arg-type]
    if any(behind % 4 for behind in found):
        raise Internal(f"a part that begins {found} bytes behind", at=node.op, why="operands begin at multiples of 4")
    return found


def _at_slot(slot: Slot) -> Operand:
    if slot.offset % 4:
        raise Internal(f"a slot at {slot.offset}, which is not a multiple of 4")
    return Operand(slot.region, slot.offset, slot.stride)
