"""A network in int8: every forward graph rewritten, with scales from the user's samples (decision 0022).

Layers become integer layers, norms and ReLUs behind them included; what follows them is done in integers too, as far as
it has a form in integers and all that it reads are integers already. All else stays in f32, the last layers (whose
results are what the network is asked for) among it, with `quantize` and `dequantize` between. Weights and biases that
learn are integers in STATE from here on; what they stand for is in their `quant`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ... import ops
from ...errors import CannotQuantize
from ...ir import Array, DType, Graph, Node, Quant, Role, Tensor, dead_removed
from ...ops.build import named_by_content, typed
from ...ops.fixed_point import HIGH, LOW, REQUANTIZE, quant_of_range, rounded
from ...ops.quantize import of_step, of_table
from ...program.arrays import added_step
from .calibrate import Calibration
from .identity import Chain, chains
from .int8_layer import Numbers, Source, can_take_norm, cut_off, numbers_of, source_of

GROWTH: Final = 4
"""So many times the range of scores that was observed is left to those of a network that learns."""


@dataclass(frozen=True, slots=True)
class Quantized:
    graphs: Mapping[str, Graph]
    fixed: frozenset[str]  # parameters that were to learn and are part of others now
    report: Report


@dataclass(slots=True)
class Report:
    """What people are told: by the module of the user's model."""

    layers: dict[str, int] = field(default_factory=dict)  # in int8 → dead outputs
    kept: dict[str, str] = field(default_factory=dict)  # layers that stayed in f32 → why
    floats: dict[str, None] = field(default_factory=dict)  # ops in f32 between layers in int8
    backs: dict[str, None] | None = None  # with gradients in int16: ops of the backward pass that read them as f32
    samples: int = 0


def quantized(graphs: Mapping[str, Graph], calibration: Calibration, head: str, gradients: str = "f32") -> Quantized:
    """`head`: the last layers are "f32" or "int8"; `gradients` "f32" or "int16". Ranges are those of inference."""
    shared = _Shared(graphs["infer"], calibration, head)
    done = {name: _Rewrite(graph, shared, name).run() for name, graph in graphs.items()}
    report = shared.report
    report.samples, report.backs = calibration.samples, {} if gradients == "int16" else None
    if not report.layers:
        kept = next(iter(report.kept.items()), None)
        why = f"'{kept[0]}' stays in f32: {kept[1]}" if kept else "it has no convolution and no linear layer"
        raise CannotQuantize("nothing of the network can be int8", why=why, help="precision='f32'")
    return Quantized(done, frozenset(shared.fixed), report)


class _Shared:
    """What all graphs agree on: what each value stands for, and the numbers of each layer."""

    def __init__(self, graph: Graph, calibration: Calibration, head: str) -> None:
        self.identity = calibration.identity
        self._ranges = calibration.ranges(graph)
        self.fixed: set[str] = set()
        self.report = Report()
        self._group: dict[int, int] = {}
        self._numbers: dict[tuple[str, int], Numbers | None] = {}
        self._quants: dict[int, Quant] = {}
        own = self.identity.of(graph)
        for node in graph.nodes:
            if is_same(node):
                values = [name for name in (*node.ins, *node.outs[:1]) if _is_real(graph, name)]
                for name in values[1:]:
                    self._join(own[values[0]], own[name])
        last = {own[end] for end in _last_layers(graph)}
        self.heads = set[int]() if head == "int8" else last
        self._roomy = last if graph.of_role(Role.PARAM) else set[int]()

    def _root(self, number: int) -> int:
        while number in self._group:
            number = self._group[number]
        return number

    def _join(self, one: int, other: int) -> None:
        a, b = self._root(one), self._root(other)
        if a != b:
            self._group[b] = a

    def quant(self, number: int | None) -> Quant | None:
        """What int8 numbers of this value stand for: the same for all values that are only moved."""
        if number is None or number not in self._ranges:
            return None
        root = self._root(number)
        if root not in self._quants:
            found = [r for n, r in self._ranges.items() if self._root(n) == root]
            low, high = min(low for low, _ in found), max(high for _, high in found)
            room = GROWTH if any(self._root(n) == root for n in self._roomy) else 1
            self._quants[root] = quant_of_range(room * low, room * high)
        return self._quants[root]

    def numbers(self, graph: Graph, chain: Chain, source: Source, x: int, y: int) -> Numbers | None:
        x_quant, y_quant = self.quant(x), self.quant(y)
        if x_quant is None or y_quant is None:
            return None
        key = source.name, x
        if key not in self._numbers or not source.learns:
            self._numbers[key] = numbers_of(graph, chain, source, x_quant, y_quant)
            found = self._numbers[key]
            if found is not None:
                self.fixed.update(found.fixed)
        return self._numbers[key]


def is_same(node: Node) -> bool:
    form = ops.get(node.op).integer
    return form is not None and form.kind == "same"


def _is_real(graph: Graph, name: str) -> bool:
    tensor = graph[name]
    return tensor.dtype is DType.F32 and tensor.role is Role.VALUE


def _last_layers(graph: Graph) -> list[str]:
    """Results of layers that no other layer depends on."""
    linked = chains(graph)
    needed: set[str] = set()
    found = []
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        if position in linked and node.outs[0] not in needed:
            found.append(linked[position].sum)
        if position in linked or any(out in needed for out in node.outs):
            needed.update(node.ins)
    return found


class _Rewrite:
    """One graph, node by node. A value is there in f32, in int8, or both."""

    def __init__(self, graph: Graph, shared: _Shared, name: str) -> None:
        self.graph, self.shared, self.entry = graph, shared, name
        self.number = shared.identity.of(graph)
        self.chains = chains(graph)
        self.readers, self.made = graph.readers(), graph.producer()
        self.tensors = dict(graph.tensors)
        self.data, self.layouts = dict(graph.data), dict(graph.layouts)
        self.nodes: list[Node] = []
        self.floats: set[str] = set()  # computed in f32, under their names
        self.born: dict[str, str] = {}  # computed in int8 → the tensor
        self.made_int8: dict[str, str] = {}  # rounded to int8 → the tensor
        self.made_real: dict[str, str] = {}
        self.skip: set[int] = set()

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            if position in self.skip:
                continue
            if not (self._layer(position) or self._follows(position, node)):
                self._as_it_is(node)
        graph = self.graph.with_(
            tensors=self.tensors, nodes=tuple(self.nodes), data=self.data, layouts=self.layouts
        )  # fmt: skip
        return dead_removed(graph) if graph.outputs else _tidied(graph)

    # -- values --------------------------------------------------------------------------------------------------------

    def _new(self, hint: str, like: Tensor, dtype: DType, quant: Quant | None) -> str:
        name = hint
        while name in self.tensors:
            name += "'"
        self.tensors[name] = replace(like, name=name, dtype=dtype, quant=quant, role=Role.VALUE)
        return name

    def _emit(self, op: str, ins: Sequence[str], outs: Sequence[str], attrs: Mapping[str, Any], of: Node) -> None:
        self.nodes.append(Node(op, tuple(ins), tuple(outs), dict(attrs), of.stage, of.src))

    def _int8(self, name: str, of: Node) -> str | None:
        """The value as int8: as it was computed, or rounded here; None if nobody knows its range."""
        if name in self.born or name in self.made_int8:
            return self.born.get(name) or self.made_int8[name]
        quant = self.shared.quant(self.number.get(name))
        if quant is None:
            return None
        new = self._new(f"{name}.int8", self.graph[name], DType.I8, quant)
        self._emit("quantize", [name], [new], of_step(quant), of)
        self.made_int8[name] = new
        return new

    def _real(self, name: str, of: Node) -> str:
        if name not in self.born:
            return name
        if name not in self.made_real:
            source = self.tensors[self.born[name]]
            assert source.quant is not None
            new = self._new(f"{name}.real", source, DType.F32, None)
            self._emit("dequantize", [source.name], [new], of_step(source.quant), of)
            self.made_real[name] = new
        return self.made_real[name]

    def _as_it_is(self, node: Node) -> None:
        if any(name in self.born for name in node.ins) and not (ops.border(node) or self._is_layer(node)):
            self.shared.report.floats[node.op] = None
        self.nodes.append(node.with_(ins=tuple(self._real(name, node) for name in node.ins)))

    @staticmethod
    def _is_layer(node: Node) -> bool:
        form = ops.get(node.op).integer
        return form is not None and form.kind == "layer"

    def _result(self, name: str, quant: Quant) -> str:
        """A value of that name in int8, in place of the one in f32."""
        self.tensors[name] = replace(self.graph[name], dtype=DType.I8, quant=quant)
        self.born[name] = name
        return name

    def _constant(self, hint: str, value: Array, quant: Quant | None = None) -> str:
        name = named_by_content(hint, value)
        self.tensors[name] = Tensor(name, value.shape, DType.of_numpy(value.dtype), Role.CONST, quant=quant)
        self.data[name] = value
        return name

    # -- layers --------------------------------------------------------------------------------------------------------

    def _layer(self, position: int) -> bool:
        chain = self.chains.get(position)
        if chain is None:
            return False
        node = chain.layer
        found = self._why_not(chain)
        if isinstance(found, str):
            self.shared.report.kept.setdefault(node.src or node.outs[0], found)
            return False
        chain, source, numbers, y = found
        x = self._int8(node.ins[0], node)
        assert x is not None
        x_quant = self.tensors[x].quant
        assert x_quant is not None
        weight = self._weight(source, numbers, node)
        bias = self._bias(numbers, source.name)
        m = self._constant(f"{source.name}:m", numbers.multipliers)
        bounds = None if chain.bounded is None else ops.get(chain.bounded.op).bounds
        ends = cut_off(bounds(chain.bounded.attrs) if bounds and chain.bounded else None, y)
        form = ops.get(node.op).integer
        assert form is not None
        rescaled = dict(zip(REQUANTIZE, (numbers.shift, y.zero_points[0]), strict=False))
        attrs = {**node.attrs, "x_zero": x_quant.zero_points[0], **rescaled, **ends}
        self._emit(form.op, [x, weight, bias, m], [self._result(chain.end, y)], attrs, node)
        self.skip.update(chain.members)
        self.shared.report.layers.setdefault(node.src or node.outs[0], numbers.dead)
        return True

    def _why_not(self, chain: Chain) -> str | tuple[Chain, Source, Numbers, Quant]:
        """Why the layer stays in f32, or what it becomes."""
        node = chain.layer
        if self.number.get(chain.sum) in self.shared.heads:
            return "the last layer"
        source = source_of(self.graph, self.made, node.ins[1])
        if source is None:
            return "its weight is computed"
        biases = (*node.ins[2:], *chain.added)
        if source.learns and len(self.readers[node.ins[1]]) > 1:
            return "its weight learns and is used more than once"
        if any(self.graph[name].role is Role.PARAM and len(self.readers[name]) > 1 for name in biases):
            return "its bias learns and is used more than once"
        if any(self.graph[name].role not in (Role.PARAM, Role.CONST) for name in biases):
            return "its bias is no constant"
        if not can_take_norm(self.graph, chain, source.learns):
            chain = Chain(node, None, (), node.outs[0], None, ())
        y = self.shared.quant(self.number.get(chain.end))
        x_number, y_number = self.number.get(node.ins[0]), self.number.get(chain.end)
        if y is None or x_number is None or y_number is None or self.shared.quant(x_number) is None:
            if source.learns:
                raise CannotQuantize(
                    f"'{source.name}' cannot learn in int8", at=node.src,
                    why=f"what it reads in '{self.entry}' is not what it reads in inference, where ranges are observed",
                    help="a method with which this layer is constant, or precision='f32'",
                )  # fmt: skip
            return "what it reads in training is not what it reads in inference"
        numbers = self.shared.numbers(self.graph, chain, source, x_number, y_number)
        return "its sums do not fit 32 bits" if numbers is None else (chain, source, numbers, y)

    def _weight(self, source: Source, numbers: Numbers, node: Node) -> str:
        if not source.learns:
            return self._constant(f"{source.name}:int8", numbers.weight, numbers.weight_quant)
        if source.part is None:
            self._parameter(source.name, numbers.weight, numbers.weight_quant)
            return source.name
        part = source.part
        place = (slice(None),) * part.axis + (part.index,)
        rest = np.array(numbers.weight)
        rest[place] = 0  # a layer that reads both may add them
        quant = numbers.weight_quant
        self.tensors[part.frozen] = replace(self.tensors[part.frozen], dtype=DType.I8, quant=quant)
        self.data[part.frozen] = rest
        own = quant if part.axis else _taken(quant, part.index)
        self._parameter(source.name, np.ascontiguousarray(numbers.weight[place]), own)
        whole = node.ins[1]
        self.tensors[whole] = replace(self.graph[whole], dtype=DType.I8, quant=quant)
        return whole

    def _bias(self, numbers: Numbers, weight: str) -> str:
        name = numbers.learned_bias
        if not name:
            return self._constant(f"{weight}:bias", numbers.bias)
        if self.graph[name].shape != numbers.bias.shape:
            self.layouts[name] = added_step(self.layouts.get(name, ()), ("reshape", numbers.bias.shape))
        self._parameter(name, numbers.bias, numbers.bias_quant)
        return name

    def _parameter(self, name: str, value: Array, quant: Quant) -> None:
        self.tensors[name] = Tensor(name, value.shape, DType.of_numpy(value.dtype), Role.PARAM, quant=quant)
        self.data[name] = value

    # -- what follows layers -------------------------------------------------------------------------------------------

    def _follows(self, position: int, node: Node) -> bool:
        """In integers, if all its values are, and it knows how."""
        record = ops.get(node.op)
        values = [name for name in node.ins if self.graph[name].role is Role.VALUE]
        rest = [name for name in node.ins if name not in values]
        if not values or any(name not in self.born for name in values):
            return False
        if any(self.graph[name].role is not Role.CONST or self.graph[name].dtype is not DType.F32 for name in rest):
            return False
        end, bounded = self._bounded(position, node)
        quant = self.shared.quant(self.number.get(end))
        if quant is None or not _is_real(self.graph, node.outs[0]):
            return False
        form = record.integer
        if form is not None and form.kind == "same":
            return self._same(node)
        if form is not None and form.kind == "rescaled" and len(node.outs) == 1:
            ins = [self.born[name] if name in self.born else self._rounded(name) for name in node.ins]
            quants = [q for name in ins if (q := self.tensors[name].quant) is not None]
            assert form.attrs is not None
            attrs = form.attrs(typed(self.graph, node), quants, quant)
            if attrs is None:
                return False
            bounds = None if bounded is None else ops.get(bounded.op).bounds
            ends = cut_off(bounds(bounded.attrs) if bounds and bounded else None, quant)
            attrs = {**attrs, "y_zero": quant.zero_points[0], **ends}
            self._emit(form.op, ins, [self._result(end, quant)], attrs, node)
            if bounded is not None:
                self.skip.add(self.readers[node.outs[0]][0])
            return True
        if record.pointwise and len(node.ins) == len(node.outs) == 1 and not record.needs_run and not record.is_view:
            return self._table(node)
        return False

    def _bounded(self, position: int, node: Node) -> tuple[str, Node | None]:
        """The result, or what cuts it off if nothing else reads it."""
        form, readers = ops.get(node.op).integer, self.readers.get(node.outs[0], [])
        if form is None or form.kind != "rescaled" or len(readers) != 1:
            return node.outs[0], None
        after = self.graph.nodes[readers[0]]
        return (after.outs[0], after) if ops.get(after.op).bounds is not None else (node.outs[0], None)

    def _same(self, node: Node) -> bool:
        """The result has the scale of the inputs; constants get it, too."""
        own = self.shared.quant(self.number.get(node.outs[0]))
        inputs = [self.tensors[self.born[name]].quant for name in node.ins if name in self.born]
        if own is None or any(quant != own for quant in inputs):
            return False
        form, rest = ops.get(node.op).integer, [name for name in node.ins if name not in self.born]
        assert form is not None
        ins = [self.born[name] if name not in rest else self._rounded(name, own) for name in node.ins]
        attrs = form.attrs(typed(self.graph, node), [own] * len(ins), own) if form.attrs is not None else node.attrs
        assert attrs is not None
        self._emit(node.op, ins, [self._result(node.outs[0], own), *node.outs[1:]], attrs, node)
        return True

    def _rounded(self, name: str, quant: Quant | None = None) -> str:
        """A constant."""
        value = np.asarray(self.graph.data[name], np.float64)
        quant = quant or quant_of_range(float(value.min(initial=0.0)), float(value.max(initial=0.0)))
        return self._constant(f"{name}:int8", rounded(value, quant), quant)

    def _table(self, node: Node) -> bool:
        x, y = self.tensors[self.born[node.ins[0]]].quant, self.shared.quant(self.number.get(node.outs[0]))
        assert x is not None
        assert y is not None
        numbers = (np.arange(LOW, HIGH + 1) - x.zero_points[0]) * x.scales[0]
        values = of_table(node.op, node.attrs, numbers)
        if values is None:
            return False
        table = self._constant(f"{node.outs[0]}:table", rounded(values, y))
        out = self._result(node.outs[0], y)
        self._emit("qtable", [self.born[node.ins[0]], table], [out], {**node.attrs, "of": node.op}, node)
        return True


def _taken(quant: Quant, index: Array) -> Quant:
    """Of some outputs."""
    picked: dict[str, Any] = {
        name: tuple(np.asarray(values)[index].tolist())
        for name in ("scales", "zero_points", "factors", "shifts")
        if (values := getattr(quant, name))
    }
    return replace(quant, **picked)


def _tidied(graph: Graph) -> Graph:
    """A graph that hands nothing out: only stored tensors go that nobody reads."""
    read = {name for node in graph.nodes for name in (*node.ins, *node.outs)}
    stored = (Role.CONST, Role.PARAM)
    tensors = {name: t for name, t in graph.tensors.items() if name in read or t.role not in stored}
    return graph.with_(tensors=tensors, data={k: v for k, v in graph.data.items() if k in tensors})


def with_fixed(graphs: Mapping[str, Graph], fixed: Collection[str]) -> dict[str, Graph]:
    """Parameters that no longer learn are constants."""

    def settled(graph: Graph) -> Graph:
        gone = {t.name: replace(t, role=Role.CONST) for t in graph.of_role(Role.PARAM) if t.name in fixed}
        return graph.with_(tensors={**graph.tensors, **gone})

    return {name: settled(graph) for name, graph in graphs.items()}


def check_learns(left: Collection[str], fixed: Collection[str], method: str) -> None:
    """Something must learn beside what became part of other parameters."""
    if not left:
        raise CannotQuantize(
            f"nothing that method '{method}' selects learns in int8",
            why=f"{', '.join(sorted(fixed))} became part of weights",
            help="method='full', or precision='f32'",
        )  # fmt: skip


def check_merges(merges: Collection[object], method: str) -> None:
    """What goes into a weight when it goes home needs that weight in f32."""
    if merges:
        raise CannotQuantize(
            f"method '{method}' does not learn in int8",
            why="what it learns is added to weights, which are in f32 then",
            help="method='last_layer', or precision='f32'",
        )


__all__ = ["Quantized", "Report", "check_learns", "check_merges", "quantized", "with_fixed"]
