"""Writes docs/reference from the registries: `python -m tools.make_reference`. A test fails if the pages are older.

Nothing here knows an op by name: what a gradient is and what it reads is found by asking the op's own rule.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smidgen import ops
from smidgen.errors import all_errors
from smidgen.ir import DType, Node, Quant, Tensor
from smidgen.methods import all_methods
from smidgen.ops.build import Builder
from smidgen.ops.registry import declared
from tools.python_reference import python_page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- made by tools/make_reference.py: change the tables, not this page -->\n"
SAMPLES = 3
ROW = ("op", "meaning", "memory", "kernel")


# -- operations ----------------------------------------------------------------------------------------------------


def ops_page() -> str:
    every = ops.all_ops()
    made_by_rules = {node.op for op in every.values() for node in _gradient_nodes(op)}
    fused = {name for name, op in every.items() if _sink_of(name, every)}
    updates = {name for name, op in every.items() if op.shares and not op.is_view} - fused
    gradients = {n for n, op in every.items() if op.vjp is ops.NOT_DIFFERENTIABLE and n in made_by_rules} - updates
    forward = [op for name, op in every.items() if name not in fused | updates | gradients]
    return f"""# Operations

{NOTE}
{len(every)} operations. Each is one record in [`src/smidgen/ops`](../../src/smidgen/ops) and one C function in
[`src/smidgen/runtime/kernels`](../../src/smidgen/runtime/kernels); [add an op](../howto/add_an_op.md) shows how to
write one. Here an op is `name(inputs; attributes)`; y is its output, y.1 its second output, dy the gradient of y.

- **gradient**: what the op's rule adds to the backward pass; — means that the gradient is zero or does not exist.
- **reads**: what of the forward pass the gradient reads, and so what is kept for it. Weights are in STATE anyway; and
  where an input does not depend on what learns, its gradient and what only that reads are left out.
- **memory**: inputs whose memory the output may take when nothing reads them afterwards; an update always does.

## Forward

{_table(("op", "meaning", "gradient", "reads", "memory", "kernel"), [_forward_row(op) for op in forward])}
## Gradients

{_table(ROW, [_row(every[n], _in_place(every[n])) for n in every if n in gradients])}
## Updates

{_table(ROW, [_row(every[n], _shared(every[n])) for n in every if n in updates])}
## Weight gradient and update in one

The gradient goes into the optimizer tile by tile and never exists as a whole.

{_table(("gradient", "joined with its consumer"), _fused_rows(every, fused))}"""


def _fused_rows(every: Mapping[str, ops.Op], fused: set[str]) -> list[tuple[str, str]]:
    sinks = [name for name, op in every.items() if op.sink or op.rounded_sink]
    return [
        (f"`{s}`", ", ".join(f"`{name}`" for name in every if name in fused and _sink_of(name, every) == s))
        for s in sinks
    ]


def _forward_row(op: ops.Op) -> Sequence[str]:
    gradient, reads = _gradient(op)
    return (_call(op), _doc(op), gradient, reads, _in_place(op), _kernels(op))


def _row(op: ops.Op, memory: str) -> Sequence[str]:
    return (_call(op), _doc(op), memory, _kernels(op))


def _call(op: ops.Op) -> str:
    attrs = list(dict.fromkeys(key for case in op.cases for key in case.attrs))
    return f"`{op.name}({', '.join(_names(op))}{'; ' + ', '.join(attrs) if attrs else ''})`"


def _sink_of(name: str, every: Mapping[str, ops.Op]) -> str:
    """The weight gradient that a fused op contains."""
    place, _, _ = name.rpartition("_")
    return place if place in every and (every[place].sink or every[place].rounded_sink) else ""


def _doc(op: ops.Op) -> str:
    return op.doc.replace("|", "\\|")


def _in_place(op: ops.Op) -> str:
    return "view" if op.is_view and op.shares else ", ".join(_names(op)[i] for i in op.inplace)


def _shared(op: ops.Op) -> str:
    return ", ".join(_names(op)[i] for i in op.shares.values())


def _kernels(op: ops.Op) -> str:
    return ", ".join(f"`{kernel}`" for kernel in dict.fromkeys(op.kernels.values()))


def _names(op: ops.Op) -> list[str]:
    """Of the inputs, as the op's definition calls them."""
    count = max((len(case.inputs) for case in op.cases), default=0)
    found = [
        p.name for p in inspect.signature(op.ref).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    return [found[i] if i < len(found) else f"in{i}" for i in range(count)]


def _built(op: ops.Op, case: ops.Case) -> tuple[Builder, list[str], Node]:
    b, rng = Builder(), np.random.default_rng(zlib.crc32(op.name.encode()))
    names = []
    for name, spec in zip(_names(op), case.inputs, strict=False):
        array = np.asarray(spec(rng, SAMPLES)) if callable(spec) else np.zeros(())
        names.append(b.tensor(name, declared(spec, array), DType.of_numpy(array.dtype)))
        b.tensors[names[-1]] = stands_for_real(op, len(names) - 1, b[names[-1]])
    b.add_many(op.name, *names, **case.attrs, name="y")
    return b, names, b.nodes[0]


def stands_for_real(op: ops.Op, number: int, tensor: Tensor) -> Tensor:
    """An input of an op in integers with what they stand for: one scale, or one for each output of a weight or bias."""
    by_output = number in op.operands
    if tensor.dtype is not DType.I8 and not (tensor.dtype is DType.I32 and by_output):
        return tensor
    count = int(tensor.shape[0]) if by_output else 1  # type: ignore[arg-type]
    return replace(tensor, quant=Quant((0.5,) * count, (0,) * count, 0 if by_output else None))


def _gradient_nodes(op: ops.Op) -> list[Node]:
    found: list[Node] = []
    for case in _differentiable_cases(op):
        b, _, node = _built(op, case)
        op.vjp(b, node, _dys(b, node))  # type: ignore[operator]
        found += b.nodes[1:]
    return found


def _differentiable_cases(op: ops.Op) -> list[ops.Case]:
    return [c for c in op.cases if c.smooth and op.vjp is not ops.NOT_DIFFERENTIABLE]


def _dys(b: Builder, node: Node) -> list[str | None]:
    floats = [out for out in node.outs if b[out].dtype in (DType.F32, DType.I8)]
    names = {out: b.tensor("dy" if k == 0 else f"dy{k}", b[out].shape) for k, out in enumerate(floats)}
    return [names.get(out) for out in node.outs]


def _gradient(op: ops.Op) -> tuple[str, str]:
    """The gradient of each input as an expression, and what it reads of the forward pass."""
    cases = _differentiable_cases(op)
    if not cases:
        return "—", ""
    case = max(cases, key=lambda c: len(c.inputs))
    texts: list[str] = []
    reads: list[str] = []
    for i in range(len(case.inputs)):
        b, names, node = _built(op, case)
        b.want([names[i]])
        grad = list(op.vjp(b, node, _dys(b, node)))[i]  # type: ignore[operator]
        if grad is None:
            continue
        made = {out: n for n in b.nodes[1:] for out in n.outs}
        texts.append(f"d{names[i]} = {_expression(grad, made)}")
        leaves = [x for n in b.nodes[1:] for x in n.ins if x in (*node.ins, *node.outs)]
        reads += [x for x in leaves if x not in reads]
    bit = " or one bit an element" if reads and any(_shrinks(n) for n in _gradient_nodes(op)) else ""
    return "; ".join(texts) or "—", (", ".join(reads) or "nothing") + bit if texts else ""


def _shrinks(node: Node) -> bool:
    return ops.get(node.op).bits is not None


def _expression(name: str, made: Mapping[str, Node]) -> str:
    if name not in made:  # a constant has the hash of what it holds at its end
        return name.partition(".")[0] if ":" in name else name
    node = made[name]
    return f"{node.op}({', '.join(_expression(i, made) for i in node.ins)})"


# -- methods and errors --------------------------------------------------------------------------------------------


def methods_page() -> str:
    rows = [
        (f"`{m.name}{f':{m.argument}' if m.argument else ''}`", m.doc, m.keeps, m.costs, m.after)
        for m in all_methods().values()
    ]
    names = "parameters by the names that `model.named_parameters()` gives: `head.*`"
    rows.append(("a name or glob", names, "", "", ""))
    return f"""# Methods: what learns

{NOTE}
`smidgen.compile(model, example, method="bias")`, or `smidgen plan … --method bias`. From Python, `method` may
also be a method of your own, an `Update`, or a list that mixes methods, names and patterns of parameters and updates:
`method=["bn", "head.*", smidgen.Update("stem.bias")]`. Parameters with `requires_grad=False` never learn.
[Add a method](../howto/add_a_method.md) shows how to write one.

Kept are activations, from the forward to the backward pass; costs come on top of inference.

""" + _table(("method", "what learns", "keeps", "costs", "after"), rows)


def errors_page() -> str:
    rows = []
    for code, kind in sorted(all_errors().items()):
        link = f"[{code}](../../src/smidgen/report/explain/{code}.md)"
        rows.append((link, f"`{kind.__name__}`", inspect.cleandoc(kind.__doc__ or ""), str(kind.exit_status)))
    return f"""# Errors

{NOTE}
Every error is a `smidgen.SmidgenError` and says what went wrong, where, why, and what to type next.
`smidgen explain E101` prints the page of a code. The status is what the command line returns: 1 valid but impossible or
mismatched, 2 wrong usage, 3 a bug in smidgen.

""" + _table(("code", "class", "meaning", "status"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PAGES = {"ops.md": ops_page, "methods.md": methods_page, "errors.md": errors_page, "python.md": python_page}
"""File name → what makes its text."""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, made in PAGES.items():
        (FOLDER / name).write_text(made(), encoding="utf-8")
        print(f"wrote {(FOLDER / name).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
