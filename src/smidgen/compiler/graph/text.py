"""A Graph as text and back, exactly: one line per given tensor, one line per node. Tests of passes are written in it.

    input x: f32[n,3,8,8]
    param w: f32[16,3,3,3]
    layout w: permute(0, 2, 3, 1)
    x.fed: f32[n,8,8,3] = feed(x) perm=(0, 2, 3, 1)
    h: f32[n,8,8,16] = conv2d(x.fed, w) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1  # features.0
    output y: f32[n,16,8,8] = fetch(h) perm=(0, 3, 1, 2)

Sizes `n`, `49n` grow with the samples; `@backward` names a stage other than the usual one; `# path` is the node's src.
A tensor that no node computes is declared with its role, and with its value if that is small; `page` before the role
says that it lives in PAGE; `quant=((0.5,), (3,))` behind the type is scales and zero points, a third number their
axis, and after that factors and shifts of what was folded into it. When reading, the type of a result may be left out
(`h = relu(x)`): the op's own rule supplies it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ... import ops
from ...ir import Array, Batch, DType, Graph, Node, Quant, Role, Step, Tensor
from .rows import renamed

_PLAIN_NAME = re.compile(r"[\w.%/@~-][\w.%/@~'-]*(?::[\w.%/@~'-]+)*")  # a colon that ends a name has a space behind it
_CALL = re.compile(r"[A-Za-z_]\w*\(")
_NUMBER = re.compile(r"-?(?:inf\b|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_SIZE = re.compile(r"(\d*)n\b|(\d+)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None, "nan": float("nan"), "n": Batch(1)}
_WORDS |= {d.value: d for d in DType}


_Result = tuple[Role | None, str, ops.registry.Spec | None, bool, Quant | None]
"""Role, name, type, whether it is in PAGE and what its integers stand for, of a result, as far as they are written."""


class BadText(ValueError):
    """The text is not a graph; the message names the line."""


def to_text(graph: Graph, literals: int = 8) -> str:
    """The graph, with the values of stored tensors of at most `literals` elements."""
    computed = {out for node in graph.nodes for out in node.outs}
    lines = []
    for kind, listed, role in (("inputs", graph.inputs, Role.INPUT), ("outputs", graph.outputs, Role.OUTPUT)):
        given = [t.name for t in graph.of_role(role) if t.name not in computed]
        usual = given + [o for node in graph.nodes for o in node.outs if o in graph.tensors and graph[o].role is role]
        if list(listed) != usual:
            lines.append(f"{kind}({', '.join(map(_name, listed))})")
    for tensor in graph.tensors.values():
        if tensor.name in computed:
            continue
        line = "page " * tensor.paged + f"{tensor.role.value} {_typed(graph, tensor.name)}"
        value = graph.data.get(tensor.name)
        if value is not None and np.asarray(value).size <= literals:
            line += f" = {_show(np.asarray(value).tolist())}"
        lines.append(line)
    for name, steps in graph.layouts.items():
        shown = ", ".join(f"{kind}({', '.join(map(str, sizes))})" for kind, sizes in steps)
        lines.append(f"layout {_name(name)}: {shown}")
    inside = 0
    for node in graph.nodes:
        lines.append("  " * (inside > 0) + _node(graph, node))
        repeats = ops.is_loop(node) or ops.is_stream(node)
        inside = node.attrs["body"] if repeats else max(0, inside - 1)
    return "\n".join(lines) + "\n"


def canonical(graph: Graph) -> str:
    """The text with computed values named %0, %1, … in order: equal for graphs that differ only in those names."""
    new: dict[str, str] = {}
    for node in graph.nodes:
        for out in node.outs:
            if graph[out].role is Role.VALUE:
                new.setdefault(out, f"%{len(new)}")

    def rename(node: Node) -> Node:
        attrs = dict(node.attrs)
        if ops.is_loop(node):
            attrs["yields"] = tuple(new.get(y, y) for y in attrs["yields"])
        if ops.is_stream(node):
            attrs = renamed(attrs, new)
        ins, outs = (tuple(new.get(t, t) for t in names) for names in (node.ins, node.outs))
        return node.with_(ins=ins, outs=outs, attrs=attrs)

    tensors = {new.get(k, k): replace(t, name=new.get(k, k)) for k, t in graph.tensors.items()}
    given = sorted(tensors.items(), key=lambda item: item[0])
    layouts = dict(sorted(graph.layouts.items()))
    return to_text(graph.with_(tensors=dict(given), nodes=tuple(map(rename, graph.nodes)), layouts=layouts))


def _node(graph: Graph, node: Node) -> str:
    outs = []
    for out in node.outs:
        role = graph[out].role if out in graph.tensors else Role.VALUE
        paged = out in graph.tensors and graph[out].paged
        outs.append("page " * paged + ("" if role is Role.VALUE else f"{role.value} ") + _typed(graph, out))
    line = f"{', '.join(outs)} = " if outs else ""
    line += f"{node.op}({', '.join(map(_name, node.ins))})"
    line += "".join(f" {key}={_show(value)}" for key, value in node.attrs.items())
    if node.stage != _usual_stage(node.op):
        line += f" @{node.stage}"
    if node.src:
        plain = node.src == node.src.strip() and node.src.isprintable() and node.src[0] not in "'\""
        line += f"  # {node.src if plain else repr(node.src)}"
    return line


def _typed(graph: Graph, name: str) -> str:
    if name not in graph.tensors:
        return f"{_name(name)}: ?"  # for reading a broken graph; `parse` refuses it
    tensor = graph[name]
    text = f"{_name(name)}: {tensor.dtype.value}[{','.join(map(str, tensor.shape))}]"
    if tensor.quant is None:
        return text
    q = tensor.quant
    parts = (q.scales, q.zero_points, q.axis, q.factors, q.shifts)
    count = 5 if q.factors or q.shifts else 2 if q.axis is None else 3
    return f"{text} quant={_show(parts[:count])}"


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else repr(name)


def _usual_stage(op: str) -> str:
    record = ops.find(op)
    return "io" if record is not None and record.border == "out" else "forward"


def _show(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(_show, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, DType):
        return value.value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str, Batch)):
        return repr(value)
    raise BadText(f"{type(value).__name__} cannot be written as an attribute")


def parse(text: str) -> Graph:
    """The graph that `text` describes; stored tensors have no data unless it is written there."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.line, reader.at, reader.number = line, 0, number
        reader.statement()
    return reader.graph()


class _Reader:
    """Recursive descent over one line at a time; nothing is ever evaluated."""

    def __init__(self) -> None:
        self.line, self.at, self.number = "", 0, 0
        self.tensors: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self.listed: dict[str, tuple[str, ...]] = {}
        self.data: dict[str, Array] = {}
        self.layouts: dict[str, tuple[Step, ...]] = {}

    def graph(self) -> Graph:
        inputs, outputs = (
            self.listed.get(kind, tuple(t.name for t in self.tensors.values() if t.role is role))
            for kind, role in (("inputs", Role.INPUT), ("outputs", Role.OUTPUT))
        )
        return Graph(self.tensors, tuple(self.nodes), inputs, outputs, self.data, self.layouts)

    def statement(self) -> None:
        if self.done():
            return
        start = self.at
        word = self.name()
        if self.peek("(") and word in ("inputs", "outputs"):
            self.listed[word] = self.names()
        elif self.peek("("):
            self.at = start
            self.call([])
        elif word == "layout" and not self.peek(":") and not self.peek("="):
            self.layout()
        else:
            self.at = start
            self.assignment()
        if not self.done():
            raise self.wrong("the end of the line")

    def layout(self) -> None:
        name = self.name()
        self.expect(":")
        steps: list[Step] = []
        while not self.done():
            kind = self.name()
            sizes = self.value()
            steps.append((kind, sizes if isinstance(sizes, tuple) else (sizes,)))
            if not self.take(","):
                break
        self.layouts[name] = tuple(steps)

    def assignment(self) -> None:
        results = [self.result()]
        while self.take(","):
            results.append(self.result())
        if not self.take("="):
            for role, name, spec, paged, quant in results:
                if role is None or spec is None:
                    raise self.wrong("a role and a type, as in `param w: f32[3]`, or `= op(…)`")
                self.declare(name, spec, role, paged, quant)
        elif _CALL.match(self.line, self.skip()):
            self.call(results)
        else:
            self.stored(results)

    def stored(self, results: Sequence[_Result]) -> None:
        role, name, spec, paged, quant = results[0]
        if len(results) > 1 or role is None or spec is None:
            raise self.wrong("one tensor before a value, with role and type")
        self.declare(name, spec, role, paged, quant)
        shape, dtype = spec
        try:
            value = np.array(self.value(), np.float64 if dtype is DType.F32 else dtype.numpy)
            self.data[name] = value.reshape(shape)
        except ValueError:
            raise self.wrong("a value of this shape") from None

    def result(self) -> _Result:
        name, role, paged = self.name(), None, False
        if self.is_word() and name == "page":
            name, paged = self.name(), True
        if self.is_word() and name in {r.value for r in Role}:
            role, name = Role(name), self.name()
        spec = self.type() if self.take(":") else None
        return role, name, spec, paged, self.quant() if spec and self.take("quant=") else None

    def quant(self) -> Quant:
        value = self.value()
        try:
            scales, zero_points, *more = value
            axis, *folded = more or [None]
            parts = [tuple(map(float, part)) for part in folded]
            return Quant(tuple(map(float, scales)), tuple(map(operator.index, zero_points)), axis, *parts)
        except (TypeError, ValueError):
            raise self.wrong("scales, zero points and perhaps an axis") from None

    def is_word(self) -> bool:
        """Is what was just read followed by a name?"""
        return not any(self.peek(c) for c in ":=,") and not self.done()

    def type(self) -> ops.registry.Spec:
        dtype = self.match(_WORD, "a dtype")
        if dtype not in {d.value for d in DType}:
            raise self.wrong("a dtype")
        self.expect("[")
        sizes: list[int | Batch] = []
        while not self.take("]"):
            found = _SIZE.match(self.line, self.skip())
            if not found:
                raise self.wrong("a size")
            self.at = found.end()
            sizes.append(Batch(int(found[1] or 1)) if found[2] is None else int(found[2]))
            self.take(",")
        return tuple(sizes), DType(dtype)

    def call(self, results: Sequence[_Result]) -> None:
        op = self.match(_WORD, "an op")
        ins = self.names()
        attrs: dict[str, Any] = {}
        stage, src = _usual_stage(op), ""
        while self.skip() < len(self.line):
            if self.take("@"):
                stage = self.match(_WORD, "a stage")
            elif self.take("#"):
                src = self.line[self.at :].strip()
                src = ast.literal_eval(src) if _STRING.fullmatch(src) else src
                self.at = len(self.line)
            else:
                key = self.match(_WORD, "an attribute")
                self.expect("=")
                attrs[key] = self.value()
        if any(spec is None for _, _, spec, _, _ in results):
            results = self.inferred(op, ins, attrs, results)
        for role, name, spec, paged, quant in results:
            assert spec is not None
            self.declare(name, spec, role or Role.VALUE, paged, quant)
        self.nodes.append(Node(op, ins, tuple(name for _, name, _, _, _ in results), attrs, stage, src))

    def inferred(
        self, op: str, ins: tuple[str, ...], attrs: dict[str, Any],
        results: Sequence[_Result],
    ) -> list[_Result]:  # fmt: skip
        record = ops.get(op)
        unknown = [i for i in ins if i not in self.tensors]
        if unknown:
            raise self.wrong(f"a declaration of '{unknown[0]}' above")
        found: list[_Result] = []
        specs = record.infer([self.tensors[i] for i in ins], attrs)
        if len(specs) != len(results):
            raise self.wrong(f"{len(specs)} results of '{op}'")
        for k, ((role, name, spec, paged, quant), rule) in enumerate(zip(results, specs, strict=True)):
            if role is None and k in record.shares and not record.is_view:
                role = self.tensors[ins[record.shares[k]]].role
            paged = paged or record.page in ops.traits.PAGE_WRITERS
            found.append((role, name, spec or (tuple(rule[0]), rule[1]), paged, quant))
        return found

    def declare(self, name: str, spec: ops.registry.Spec, role: Role, paged: bool, quant: Quant | None) -> None:
        tensor = Tensor(name, spec[0], spec[1], role, paged, quant)
        if self.tensors.setdefault(name, tensor) != tensor:
            raise BadText(f"line {self.number}: '{name}' has two types")

    def names(self) -> tuple[str, ...]:
        self.expect("(")
        found: list[str] = []
        while not self.take(")"):
            found.append(self.name())
            self.take(",")
        return tuple(found)

    def name(self) -> str:
        found = _STRING.match(self.line, self.skip())
        if found:
            self.at = found.end()
            return str(ast.literal_eval(found[0]))
        return self.match(_PLAIN_NAME, "a name")

    def value(self) -> Any:
        for opening, closing in ("()", "[]"):
            if self.take(opening):
                items, commas = [], 0
                while not self.take(closing):
                    items.append(self.value())
                    commas += self.take(",")
                if opening == "[":
                    return items
                return items[0] if len(items) == 1 and not commas else tuple(items)
        found = _STRING.match(self.line, self.skip())
        if found:
            self.at = found.end()
            return ast.literal_eval(found[0])
        found = _SIZE.match(self.line, self.at)
        if found and found[2] is None:
            self.at = found.end()
            return Batch(int(found[1] or 1))
        found = _NUMBER.match(self.line, self.at)
        if found:
            self.at = found.end()
            return int(found[0]) if re.fullmatch(r"-?\d+", found[0]) else float(found[0])
        word = self.match(_WORD, "a value")
        if word not in _WORDS:
            raise self.wrong("a value")
        return _WORDS[word]

    # Characters.

    def skip(self) -> int:
        while self.at < len(self.line) and self.line[self.at].isspace():
            self.at += 1
        return self.at

    def done(self) -> bool:
        """At the end of the line, or at a remark on a line that has no src."""
        return self.skip() == len(self.line) or self.line[self.at] == "#"

    def peek(self, text: str) -> bool:
        return self.line.startswith(text, self.skip())

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.at += len(text) * found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.wrong(f"'{text}'")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.line, self.skip())
        if not found:
            raise self.wrong(what)
        self.at = found.end()
        return found[0]

    def wrong(self, expected: str) -> BadText:
        return BadText(f"line {self.number}, column {self.at + 1}: expected {expected}: {self.line.strip()}")
