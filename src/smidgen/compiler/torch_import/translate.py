"""What torch.export captured, as a graph: inputs, parameters and buffers by their names in the model, then op by op."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils import _pytree as pytree

from ... import ops
from ...errors import BadShape, ExportFailed, Internal, SmidgenError, UnsupportedOp
from ...ir import Array, DType, Graph, Role, Shape, dead_removed
from ...ops.build import Builder, feed, fetch
from ..inputs import Stands, in_file
from .aten import Emit, Unsupported, Value, samples
from .aten.live import memory_of
from .aten.loss import named
from .aten.walk import Walk
from .aten.writer import COMPLEX, Operand, Virtual, dtype_of

COUNTED = "num_batches_tracked"
Known = dict[int, Array]
"""id of a parameter → its value, which all graphs of a model share: a network may have a gigabyte of them."""
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    name: partial(op.loss.torch, torch) for name, op in ops.losses().items() if op.loss and op.loss.torch
}
"""Losses by name, as torch computes them."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class AddedLoss:
    """One of LOSSES, to be added to a graph, and what it compares the output with."""

    name: str
    shape: Shape
    dtype: DType
    layer: str = "loss"  # that hands out the results, for plans


class _Returned:
    """How a model puts its results together. (torch.export undoes what happens to lists and dicts of a module.)"""

    structure: Any = None


class WithLoss(nn.Module):
    """Returns the loss, followed by the model's own results if `outputs`."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any], outputs: bool) -> None:
        super().__init__()
        self.training = model.training
        self.model = model
        self.loss = loss
        self.outputs = outputs
        self.returned = _Returned()

    def forward(self, *given: torch.Tensor) -> Any:
        *inputs, target = given
        output = self.model(*inputs)
        self.returned.structure = pytree.tree_structure(output)
        if self.loss in LOSSES.values() and not isinstance(output, torch.Tensor):
            [output] = [leaf for leaf in pytree.tree_leaves(output) if leaf is not None]
        value = self.loss(output, target)
        if not isinstance(value, torch.Tensor) or value.dim():
            shape = tuple(value.shape)[1:] if isinstance(value, torch.Tensor) else ()
            raise BadShape(
                "the loss is not a scalar", why=f"it gives {type(value).__name__} of shape (batch, *{shape})",
                help="reduce it, for example with .mean()",
            )  # fmt: skip
        if not self.outputs:
            return value
        return value, *[leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


@contextmanager
def _nothing_raw() -> Iterator[None]:
    """What no rule foresaw and no op is to blame for is a fault of the import."""
    try:
        yield
    except SmidgenError:
        raise
    except Unsupported as error:
        raise UnsupportedOp("the model's inputs or outputs are not supported", why=error.why, help=error.help) from None
    except Exception as error:
        raise Internal("the import failed", why=f"{type(error).__name__}: {error}"[:200]) from error


@_nothing_raw()
def graph_of(
    exported: ExportedProgram,
    module: nn.Module,
    known: Known,
    *,
    bn: str,
    loss: AddedLoss | None = None,
    training: bool = False,
    stands: Sequence[Stands | None] = (),
) -> tuple[Graph, tuple[Result, ...]]:
    """The exported program as a graph, and its results: the loss first, if there is `loss` or the module has one.
    `stands`: of inputs that callers give as bytes.

    In training, the graph ends with the loss; else all results are handed out. All graphs of a model have one `known`.
    """
    wrapped = isinstance(module, WithLoss)
    model = module.model if isinstance(module, WithLoss) else module
    emit = Emit(Builder(), training=training, bn=bn)
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    specs = exported.graph_signature.input_specs
    inputs = [n for n, s in zip(placeholders, specs, strict=True) if s.kind is InputKind.USER_INPUT]
    walk = Walk(emit, inputs[0].meta["val"].shape[0].node.expr, wrapped)
    bytes_ = iter(stands)
    names = iter(_input_names(model, len(inputs) - wrapped) + ["target"] * wrapped)
    stored = _stored(emit, module, known)
    values: list[Any] = []
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            fake, given = node.meta["val"], next(bytes_, None)
            name, shape = next(names), walk.shape(fake)
            values.append(_from_bytes(emit, name, shape, given) if given else
                          Value(feed(emit.b, name, shape, dtype_of(fake.dtype))))  # fmt: skip
            continue
        name = _name_in_model(str(spec.target), module)
        values.append(_value_of(emit, exported, module, spec, stored))
        if spec.kind is not InputKind.CONSTANT_TENSOR and not name.endswith(COUNTED):
            walk.owners[memory_of(node) or 0] = name
    target = Value(feed(emit.b, "target", loss.shape, loss.dtype)) if loss else None
    results = [r for r in pytree.tree_leaves(walk.run(exported.graph_module, values)) if r is not None]
    if samples.has_samples(results):
        raise Unsupported("the model returns the numbers of the samples", samples.HELP)
    for leaf, result in zip(_outputs(exported), results, strict=True):
        if isinstance(result, Virtual):
            walk.refuse_result(leaf)
    kinds = [leaf.meta["val"].dtype for leaf in _outputs(exported)]
    found = [emit.value(emit.cast(value, kind)) for value, kind in zip(results, kinds, strict=True)]
    if loss:
        emit.b.src = "loss"
        found.insert(0, emit.value(named(emit, ops.losses()[loss.name].name, found[0], target)))
        emit.b.src = loss.layer
    if not training:
        losses = int(wrapped or loss is not None)
        for k, name in enumerate(found, -losses):
            fetch(emit.b, name, "loss" if k < 0 else "output" if k == 0 else f"output.{k}")
    graph = emit.b.graph()
    kept = _reaching(graph, found[0]) if training else dead_removed(graph)
    return kept, tuple(Result(name, emit.b[name].shape) for name in found)


def _from_bytes(emit: Emit, name: str, shape: Shape, stands: Stands) -> Value:
    """The numbers of an input that callers give as bytes."""
    fed = feed(emit.b, name, shape, DType.U8, stands=in_file(stands))
    scale, offset = stands
    return Value(emit.b.add("from_bytes", fed, scale=scale, offset=offset, axis=min(1, len(shape) - 1)))


def _outputs(exported: ExportedProgram) -> list[Any]:
    [output] = [n for n in exported.graph.nodes if n.op == "output"]
    leaves = [leaf for leaf in pytree.tree_leaves(output.args[0]) if leaf is not None]
    for leaf in leaves:
        if not hasattr(leaf, "meta") or not isinstance(leaf.meta.get("val"), torch.Tensor):
            raise BadShape(f"the model returns {leaf!r}, which is not a tensor", why="a program hands out arrays",
                           help="return tensors only; torch.full((x.shape[0],), number) is one")  # fmt: skip
    return leaves


def _input_names(model: nn.Module, count: int) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    missing = count - len(names)
    return names[:count] + ([f"x{i}" for i in range(missing)] if missing > 1 or names else ["x"] * missing)


def _name_in_model(name: str, module: nn.Module) -> str:
    """Without the module around model and loss."""
    return name.removeprefix("model.") if isinstance(module, WithLoss) else name


def _stored(emit: Emit, module: nn.Module, known: Known) -> dict[int, Operand]:
    """id of a parameter or buffer → it in the graph, in the user's layout, under its first name in the model.

    All of them, so that their names are taken; in the end only what is used stays.
    """
    found: dict[int, Operand] = {}
    for path, tensor in module.named_parameters():
        name = _name_in_model(path, module)
        if tensor.is_complex():
            raise UnsupportedOp(f"parameter '{name}' is not supported", why=COMPLEX[0], help=COMPLEX[1])
        if id(tensor) not in known:
            known[id(tensor)] = tensor.detach().cpu().to(torch.float64, copy=True).numpy()
            known[id(tensor)].flags.writeable = False
        found[id(tensor)] = Value(emit.b.stored(name, known[id(tensor)], Role.PARAM))
    for path, tensor in module.named_buffers():
        constant = emit.keep(tensor.detach().clone(), _name_in_model(path, module))
        if not constant.is_complex():  # only what is real can become a tensor of the graph
            emit.value(constant)
        found[id(tensor)] = constant
    return found


def _value_of(
    emit: Emit, exported: ExportedProgram, module: nn.Module, spec: InputSpec, stored: dict[int, Operand]
) -> Operand:
    """Parameters are tensors of the graph; buffers and other constants are known at import."""
    path = str(spec.target)
    if spec.kind is InputKind.PARAMETER:
        return stored[id(module.get_parameter(path))]
    if spec.kind is InputKind.BUFFER:
        return stored[id(module.get_buffer(path))]
    constant = exported.constants.get(path)
    if not isinstance(constant, torch.Tensor):
        raise ExportFailed(f"the model uses an object torch cannot export: {path}", help="use tensors only")
    return emit.keep(constant.detach().clone(), _name_in_model(path, module))


def _reaching(graph: Graph, result: str) -> Graph:
    """Without what neither the result nor any state depends on."""
    b = Builder(graph)
    outside = fetch(b, result, "kept")
    kept = dead_removed(b.graph())
    tensors = {name: t for name, t in kept.tensors.items() if name != outside}
    return kept.with_(nodes=kept.nodes[:-1], tensors=tensors, outputs=graph.outputs)
