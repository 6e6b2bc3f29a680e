"""Facts about an op stand in its record and nowhere else, and what the record says is true."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smidgen
from smidgen import ops
from smidgen.compiler.encode import encode
from smidgen.compiler.graph import interp
from smidgen.compiler.place import arena as place
from smidgen.errors import Internal
from smidgen.ir import Array, DType, Role, Tensor, at
from smidgen.ops import registry
from smidgen.ops.build import Builder
from smidgen.ops.registry import Call
from smidgen.ops.traits import chosen_kernel
from tools.make_reference import stands_for_real

SOURCES = Path(smidgen.__file__).parent
# The records, the translation of torch's operators, and torch's functions beside ours, which records must not know.
OWN = ("ops", "aten", "torch_graph.py")
ALL = list(ops.all_ops().values())

# Words that are the name of an op and mean something else there.
OTHER_MEANING = {
    "api.py": {"accumulate": "an argument"},
    "cli/arguments.py": {"sgd": "an optimizer"},
    "compiler/fit/misfit.py": {"zero": "an entry point"},
    "compiler/torch_import/modes.py": {"dropout": "an attribute of torch's modules"},
    "fleet/client.py": {"momentum": "a state of an optimizer"},
    "report/inspect.py": {"scale": "a key of its JSON"},
    "report/sweep_html.py": {"where": "a key of the page's JSON"},
    "compiler/passes/additive.py": {"mean": "a reduction"},
    "compiler/passes/identity.py": {"put": "what an op does with indices"},
    "compiler/passes/int8_layer.py": {"put": "what an op does with indices"},
    "program/arrays.py": {"permute": "a step of a stored layout", "reshape": "the same", "take": "the same"},
    "compiler/passes/stored.py": {"put": "what an op does with indices"},
    "compiler/passes/slices.py": {"put": "what an op does with indices", "take": "the same"},
    "train/state.py": {"take": "a step of a stored layout"},
    "methods/bias.py": {"shift": "the role of an operand"},
    "methods/layers.py": {"shift": "the role of an operand"},
    "methods/scored.py": {"shift": "the role of an operand"},
    "methods/tinytrain.py": {"shift": "the role of an operand"},
    "methods/tinytl.py": {"shift": "the role of an operand"},
    "program/timeline.py": {"loop": "a key of the plan's JSON"},
    "train/divergence.py": {"momentum": "a slot of an optimizer"},
    "train/settings.py": {"linear": "a schedule of the learning rate"},
    "compiler/planner/savings.py": {"loop": "a technique"},
    "compiler/optimizers.py": {"adam": "an optimizer", "momentum": "an argument", "sgd": "an optimizer"},
    "report/proof.py": {"sgd": "an optimizer"},
    "devices/stack.py": dict.fromkeys(
        ("conv2d", "conv2d_dw", "conv2d_dx", "linear_dx", "qconv2d_dw"), "a function in C"
    ),
    "program/plan.py": {"fill": "a kind of decision", "loop": "a kind of decision"},
    "report/plan_text.py": {"loop": "a key of the plan's JSON"},
    "compiler/loss_facts.py": {"mean": "a reduction", "momentum": "a number of an optimizer"},
    "program/loss.py": {"bce_with_logits": "a kind of loss in a file", "cross_entropy": "a kind of loss in a file"},
}


RECOGNISING = ("set", "frozenset", "startswith", "endswith", "fromkeys")


def recognised(tree: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Lines and words where a name of an op is compared, is a key or member of a set, or stands in a list of words,
    or in what a module assigns at its top."""
    at_top = {node for node in getattr(tree, "body", ()) if not _exports(node)}
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            found = [*node.keys]
        elif isinstance(node, ast.Set):
            found = [*node.elts]
        elif isinstance(node, ast.MatchValue) or (isinstance(node, (ast.Assign, ast.AnnAssign)) and node in at_top):
            found = [node.value]
        elif isinstance(node, ast.Call) and _name(node.func) in RECOGNISING:
            found = [*node.args]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 1:
            words = node.value.split()
            yield from ((node.lineno, word) for word in words if set(words) <= names)
        for part in found:
            for leaf in _members(part):
                if isinstance(leaf, ast.Constant) and leaf.value in names:
                    yield leaf.lineno, str(leaf.value)


def _exports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [_name(target) for target in node.targets] == ["__all__"]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _members(part: ast.expr | None) -> Iterator[ast.expr]:
    """Members of members, too: rows of a table."""
    if isinstance(part, (ast.Tuple, ast.List, ast.Set)):
        for member in part.elts:
            yield from _members(member)
    elif part is not None:
        yield part


def test_nothing_but_the_records_recognises_an_op_by_its_name() -> None:
    names = frozenset(ops.all_ops())
    told, needed = [], set()
    for path in sorted(SOURCES.rglob("*.py")):
        place = path.relative_to(SOURCES)
        if not set(place.parts).intersection(OWN):
            for line, word in recognised(ast.parse(path.read_text(encoding="utf-8")), names):
                needed.add((place.as_posix(), word))
                if word not in OTHER_MEANING.get(place.as_posix(), {}):
                    told.append(f"{place}:{line} '{word}'")
    assert told == [], "add a field to the record in ops/registry.py, and ask that"
    assert {(file, word) for file, words in OTHER_MEANING.items() for word in words} == needed


@pytest.mark.parametrize(
    "source",
    ["x.op == 'relu'", "x.op in ('add', 'other')", "{'mul': 1}", "frozenset(['mul'])", "f.startswith('batch_stats')",
     "NAMES = 'relu add mul'.split()", "dict.fromkeys(('relu',), 1)", "LAYERS = {'conv2d', 'linear'}",
     "LAYERS = ('conv2d', 'linear')", "LAYERS: Final = ['conv2d', 'linear']", "LAYERS = (*OTHER, 'linear')",
     "LAYERS = (('conv2d', 1), ('linear', 2))"],
)  # fmt: skip
def test_a_name_that_is_recognised_is_found(source: str) -> None:
    assert list(recognised(ast.parse(source), frozenset(ops.all_ops())))


@pytest.mark.parametrize("source", ["b.add('mul', x, y); Node('loop', ())", "__all__ = ['Builder', 'feed']"])
def test_creating_a_node_or_naming_a_function_is_no_recognition(source: str) -> None:
    assert not list(recognised(ast.parse(source), frozenset(ops.all_ops())))


# The records.


def arrays_of(case: ops.Case) -> list[Array]:
    rng = np.random.default_rng(3)
    return [np.asarray(c(rng, 3) if callable(c) else rng.uniform(0.5, 2, at(c, 3))) for c in case.inputs]


def kind_of(value: Array) -> DType:
    return DType.of_numpy(value.dtype)


def call_of(op: ops.Op, case: ops.Case) -> Call:
    ins = tuple(
        Tensor(f"x{k}", registry.declared(c, value), kind_of(value))
        for k, (c, value) in enumerate(zip(case.inputs, arrays_of(case), strict=True))
    )
    outs = tuple(Tensor(f"y{k}", tuple(s), d) for k, (s, d) in enumerate(op.infer(ins, case.attrs)))
    return Call(ins, outs, case.attrs)


def with_field(field: str) -> list[Any]:
    return [pytest.param(op, id=op.name) for op in ALL if getattr(op, field)]


@pytest.mark.parametrize("op", with_field("pointwise"))
def test_a_pointwise_op_has_the_shape_of_its_operands_broadcast(op: ops.Op) -> None:
    for case in op.cases:
        call = call_of(op, case)
        rank = max(len(t.shape) for t in call.ins)
        padded = [(1,) * (rank - len(t.shape)) + t.shape for t in call.ins]
        assert call.outs[0].shape == tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))


@pytest.mark.parametrize("op", with_field("linear_in"))
def test_an_op_is_linear_in_what_it_says(op: ops.Op) -> None:
    for case in op.cases:
        one, other = arrays_of(case), [2 * x[::-1] + 1 if x.ndim else 3 * x for x in arrays_of(case)]
        if any(x.dtype.kind != "f" for x in one):
            continue
        attrs = at(dict(case.attrs), 3)
        for group in op.linear_in:
            left = [x if k in group else one[k] for k, x in enumerate(other)]
            both = [one[k] + x if k in group else one[k] for k, x in enumerate(other)]
            results = [op.ref(*values, **attrs)[0] for values in (one, left, both)]
            np.testing.assert_allclose(results[2], results[0] + results[1], rtol=1e-9)


def test_an_op_that_is_not_linear_would_be_caught() -> None:
    square = ops.get("square")
    liar = ops.Op(
        "liar", doc="", infer=square.infer, ref=square.ref, vjp=square.vjp, cases=square.cases, linear_in=((0,),)
    )
    with pytest.raises(AssertionError):
        test_an_op_is_linear_in_what_it_says(liar)


@pytest.mark.parametrize("op", with_field("identity"))
def test_an_identity_changes_nothing(op: ops.Op) -> None:
    for case in op.cases:
        call, values = call_of(op, case), arrays_of(case)
        x, y = call.ins[0], call.outs[0]
        assert op.identity is not None
        if op.identity(case.attrs) and (x.shape, x.dtype) == (y.shape, y.dtype) and not op.needs_run:
            np.testing.assert_array_equal(op.ref(*values, **at(dict(case.attrs), 3))[0], values[0])


@pytest.mark.parametrize("op", with_field("operands"))
def test_whatever_may_be_a_parameter_has_a_gradient(op: ops.Op) -> None:
    case = max(op.cases, key=lambda c: len(c.inputs))
    b = Builder()
    call = call_of(op, case)
    ins = [b.tensor(f"x{k}", t.shape, t.dtype, Role.PARAM) for k, t in enumerate(call.ins)]
    for k, name in enumerate(ins):
        b.tensors[name] = stands_for_real(op, k, b[name])
    b.add_many(op.name, *ins, **case.attrs)
    node = b.nodes[-1]
    dys = [b.tensor(f"d{k}", t.shape) for k, t in enumerate(call.outs)]
    assert callable(op.vjp)
    grads = op.vjp(Needing(b), node, dys)
    assert len(grads) == len(ins)
    for k in op.operands:
        assert grads[k] is not None
        assert b[str(grads[k])].shape == call.ins[k].shape


class Needing:
    """A builder of which every gradient is wanted."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def __getitem__(self, name: str) -> Tensor:
        return self.b[name]

    def need(self, name: str) -> bool:
        return self.b[name].has_gradient

    def constant(self, hint: str, value: Array) -> str:
        return self.b.constant(hint, value)

    def add(self, op: str, *ins: str, **attrs: Any) -> str:
        return self.b.add(op, *ins, **attrs)

    def add_many(self, op: str, *ins: str, **attrs: Any) -> tuple[str, ...]:
        return self.b.add_many(op, *ins, **attrs)


@pytest.mark.parametrize("op", with_field("scaled_weight"))
def test_a_scaled_weight_scales_the_channels_of_the_result(op: ops.Op) -> None:
    assert op.operand("weight") == 1
    assert op.scaled_weight is not None
    for case in op.cases:
        x, w, *_ = arrays_of(case)
        attrs = at(dict(case.attrs), 3)
        (y,) = op.ref(x, w, **attrs)
        a = np.linspace(0.5, 2, y.shape[-1])
        np.testing.assert_allclose(op.ref(x, op.scaled_weight(w, a, attrs), **attrs)[0], y * a, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("op", with_field("widens"))
def test_more_rows_leave_the_other_results_alone(op: ops.Op) -> None:
    for case in op.cases:
        x, w, *bias = arrays_of(case)
        wider = [np.concatenate([v, v[:1]]) for v in (w, *bias)]
        np.testing.assert_array_equal(op.ref(x, *wider)[0][..., :-1], op.ref(x, w, *bias)[0])


@pytest.mark.parametrize("op", with_field("masks"))
def test_a_masked_element_counts_for_nothing(op: ops.Op) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5))
    masked = np.concatenate([x, np.full((3, 1), -1e30)], axis=1)
    np.testing.assert_array_equal(op.ref(masked, axis=1)[0][:, :-1], op.ref(x, axis=1)[0])


@pytest.mark.parametrize("op", with_field("rearranges"))
def test_a_step_of_a_stored_layout_does_what_the_op_does(op: ops.Op) -> None:
    from smidgen.program.arrays import laid

    for case in op.cases:
        (x,), attrs = arrays_of(case), at(dict(case.attrs), 3)
        assert op.rearranges is not None
        np.testing.assert_array_equal(laid(x, [op.rearranges(attrs)]), op.ref(x, **attrs)[0])


@pytest.mark.parametrize("op", with_field("loss"))
def test_a_loss_gives_one_number_and_takes_what_it_says(op: ops.Op) -> None:
    loss = op.loss
    assert loss is not None
    assert op.batchwise
    assert op.needs_run
    for case in op.cases:
        call = call_of(op, case)
        assert [t.shape for t in call.outs] == [()]
        assert case.attrs["reduction"] in ("mean", "sum")
        assert call.ins[1].dtype is (DType.I32 if loss.target == "classes" else DType.F32)
        assert loss.target != "classes" or "ignore_index" in case.attrs
        assert not loss.name or set(case.attrs) == {*loss.attrs, "reduction"}
    assert bool(loss.name) == (loss.torch is not None)


def test_names_of_losses_are_unique() -> None:
    names = [op.loss.name for op in ALL if op.loss and op.loss.name]
    assert len(set(names)) == len(names)
    assert set(names) == set(ops.losses())


@pytest.mark.parametrize("op", with_field("stored"))
def test_an_op_that_reads_a_stored_weight_has_every_input_of_the_op(op: ops.Op) -> None:
    """A case of the variant is one of the op, with other inputs in the place of the weight."""
    stored = op.stored
    assert stored is not None
    most = max(len(case.inputs) for case in op.cases)
    own = call_of(op, op.cases[0]).ins[stored.input].dtype
    for name, types in ((stored.int8, [DType.I8, DType.F32]), (stored.slice, [own, own, DType.I32])):
        for case in ops.get(name).cases if name else ():
            call = call_of(ops.get(str(name)), case)
            assert len(call.ins) == most + len(types) - 1
            assert [t.dtype for t in call.ins[stored.input :][: len(types)]] == types
            weight = replace(call.ins[stored.input], dtype=own)
            ins = (*call.ins[: stored.input], weight, *call.ins[stored.input + len(types) :])
            attrs = {k: v for k, v in call.attrs.items() if k != "axis" or "axis" in op.cases[0].attrs}
            assert [t.shape for t in call.outs] == [shape for shape, _ in op.infer(ins, attrs)]


def test_one_op_crosses_each_border_and_one_loops() -> None:
    assert sorted(op.border for op in ALL if op.border) == ["in", "out"]
    assert sum(op.loops for op in ALL) == 1


# Kernels by signature.


@pytest.mark.parametrize("op", with_field("kernels"))
def test_every_case_has_a_kernel(op: ops.Op) -> None:
    assert {op.kernel(call_of(op, case)) for case in op.cases} <= set(op.kernels.values())


def test_a_kernel_is_chosen_by_the_types_of_all_operands() -> None:
    kernels = {"u8,u8->i32": "dot_u8", "i32": "dot_i32", "f32,u8->f32": "dot_mixed"}
    u8, i32, f32 = DType.U8, DType.I32, DType.F32
    shown = [{i32}, {i32}]
    assert chosen_kernel("dot", kernels, [u8, u8], [i32], shown) == "dot_u8"
    assert chosen_kernel("dot", kernels, [i32, i32], [i32], shown) == "dot_i32"
    assert chosen_kernel("dot", kernels, [f32, u8], [f32], shown) == "dot_mixed"
    for ins, outs in (([f32, f32], [f32]), ([i32, u8], [i32]), ([i32, DType.I8], [i32])):
        with pytest.raises(Internal, match=f"'dot' has no kernel for {ins[0].value},{ins[1].value}->"):
            chosen_kernel("dot", kernels, ins, outs, shown)


@pytest.mark.parametrize("op", [op for op in ALL if op.kernels and op.cases], ids=lambda op: op.name)
def test_an_operand_of_another_type_does_not_get_the_usual_kernel(op: ops.Op) -> None:
    call = call_of(op, op.cases[0])
    for i, tensor in enumerate(call.ins):
        other = replace(tensor, dtype=DType.BF16)
        with pytest.raises(Internal, match="has no kernel for"):
            op.kernel(replace(call, ins=(*call.ins[:i], other, *call.ins[i + 1 :])))


def test_a_program_names_the_kernel_of_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that makes i32 of u8, which the type of its output alone cannot name."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    ops.define(
        "dot_for_test", doc="y = Σ a·b", vjp=ops.NOT_DIFFERENTIABLE,
        infer=lambda ins, attrs: [(ins[0].shape[:-1], DType.I32)],
        ref=lambda a, b: ((a.astype(np.int32) * b.astype(np.int32)).sum(-1).astype(np.int32),),
        kernels={"u8,u8->i32": "dot_u8", "i32": "dot_i32"},
    )  # fmt: skip
    for kind, kernel in ((DType.U8, "dot_u8"), (DType.I32, "dot_i32")):
        b = Builder()
        values = [np.arange(6, dtype=kind.numpy).reshape(2, 3), np.ones((2, 3), kind.numpy)]
        y = b.add("dot_for_test", *[b.stored(f"x{k}", value, Role.CONST) for k, value in enumerate(values)])
        graph = b.graph()
        stored, const_bytes, state_bytes = place.place_state([graph])
        layout = place.place(graph, 1, stored, const_bytes, state_bytes)
        assert encode({"one": (graph, layout)}, 1, {}).kernels == (kernel,)
        assert interp.run(graph, {}, n=1)[y].tolist() == [3, 12]
