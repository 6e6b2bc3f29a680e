"""A PyTorch model as graphs: torch.export captures it with a free batch size, aten/ translates it op by op.

`infer` is the model in evaluation mode, `train` the model in the mode it is in, with its loss; `evaluate` is `infer`
with the loss. The model is not changed.
Parameters and buffers have their names in the model; what else is named, inputs included, makes way for them.
"""

from __future__ import annotations

import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx.experimental import symbolic_shapes
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from ... import ops
from ...errors import BadOption, BadShape, ExportFailed, Internal, SmidgenError, UnsupportedOp, did_you_mean
from ...ir import Array, Batch, DType, Graph, Role, Shape, at, dead_removed
from ..graph.build import Builder, feed, fetch
from . import custom_gradients
from .aten import Emit, Unsupported, Value
from .aten.loss import named
from .aten.source import every_frame_noted, line_of_error, line_of_frame
from .aten.walk import Walk, memory_of
from .aten.writer import COMPLEX, Operand, dtype_of

SAMPLES = 7  # to export with: never 1, which torch takes for a constant, and rarely a size in a model
COUNTED = "num_batches_tracked"
Loss = str | Callable[..., Any]
Known = dict[int, Array]
"""id of a parameter → its value, which all graphs of a model share: a network may have a gigabyte of them."""
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    name: partial(op.loss.torch, torch) for name, op in ops.losses().items() if op.loss and op.loss.torch
}
"""Losses by name, as torch computes them."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or buffer as the user's model has it; `aliases` are further names of the same tensor."""

    name: str
    module: str
    shape: tuple[int, ...]
    requires_grad: bool
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    train: Graph
    infer: Graph
    loss: str  # the scalar in `train`
    parameters: tuple[Parameter, ...]  # in the order of the model
    buffers: tuple[Parameter, ...]
    output_shapes: tuple[Shape, ...]
    batch: int  # of the example
    evaluate: Graph | None = None  # loss and outputs of `infer`; None if the loss is not made for these outputs


def import_model(model: nn.Module, example: Any, *, loss: Loss, target: Any = None, bn: str = "frozen") -> Imported:
    """Capture `model` for training with `loss` and for inference.

    `example` is one input or a tuple of them, batch dimension first. `loss` is a name, or a function of output and
    target that comes with an example `target`. `bn`: batch-norm uses its running statistics ("frozen") or those of the
    batch at hand ("batch").
    """
    _check_options(model, loss, target, bn)
    custom_gradients.check_gradients(model)
    inputs = _tensors(example, model, "example")
    batch = inputs[0].shape[0]
    labels = None if target is None else _labels(target, model, batch)
    in_training = any(module.training for module in model.modules())
    with _mode(model, training=False):
        program = _export(model, inputs, trains=not in_training)
    known: Known = {}
    infer, outputs = _graph(program, model, known, bn=bn)
    evaluate: Graph | None
    if isinstance(loss, str) and (labels is None or not _in_torch(loss)):
        # The loss is added in translation, so one capture serves all graphs of a model in evaluation mode.
        added = _Loss(loss, *_target_for(loss, outputs))
        if labels is not None and at(added.shape, batch) != tuple(labels.shape):
            why = f"'{loss}' compares the model's output with one of shape {at(added.shape, batch)}"
            raise BadShape(f"the target has the shape {tuple(labels.shape)}", why=why)
        evaluate, _ = _graph(program, model, known, bn=bn, loss=added)
        if in_training:
            with _mode(model, training=None):
                program = _export(model, inputs, trains=True)
        train, (scalar, *_) = _graph(program, model, known, bn=bn, loss=added, training=True)
    else:
        assert labels is not None
        wrapped = _WithLoss(model, LOSSES[loss] if isinstance(loss, str) else loss, outputs=not in_training)
        with _mode(model, training=None):
            program = _export(wrapped, [*inputs, labels], trains=True)
        train, (scalar, *_) = _graph(program, wrapped, known, bn=bn, training=True)
        evaluate = _evaluated(wrapped, program, [*inputs, labels], known, bn)
    named_parameters = list(model.named_parameters(remove_duplicate=False))
    named_buffers = list(model.named_buffers(remove_duplicate=False))
    return Imported(
        train, infer, scalar.name, _listed(named_parameters), _listed(named_buffers),
        tuple(o.shape for o in outputs), batch, evaluate,
    )  # fmt: skip


def _evaluated(
    wrapped: _WithLoss, program: ExportedProgram, given: Sequence[torch.Tensor], known: Known, bn: str
) -> Graph | None:
    """The model in evaluation mode with its loss; None if it returns something else in that mode than in training, for
    which the loss was written. `program` is the capture for training; if it was made in evaluation mode, it serves here
    too."""
    try:
        expected = wrapped.returned.structure
        if not wrapped.outputs:
            wrapped = _WithLoss(wrapped.model, wrapped.loss, outputs=True)
            with _mode(wrapped, training=False):
                program = _export(wrapped, given, trains=False)
        return _graph(program, wrapped, known, bn=bn)[0] if wrapped.returned.structure == expected else None
    except SmidgenError:
        return None


# What the caller gave.


def _check_options(model: nn.Module, loss: Any, target: Any, bn: str) -> None:
    if not isinstance(model, nn.Module):
        raise BadOption(f"the model is a {type(model).__name__}", help="give a torch.nn.Module")
    if bn not in ("frozen", "batch"):
        raise BadOption(f"bn={bn!r} is not understood", help="bn='frozen' or bn='batch'")
    if isinstance(loss, str) and loss not in LOSSES:
        raise BadOption(f"no loss named '{loss}'", help=did_you_mean(loss, LOSSES))
    if not isinstance(loss, str) and not callable(loss):
        known = ", ".join(sorted(LOSSES))
        raise BadOption(f"loss={loss!r} is not a loss", help=f"one of {known}, or a function of output and target")
    if not isinstance(loss, str) and target is None:
        raise BadOption("a loss function needs an example of its target", help="pass target=…, batch dimension first")
    for name, module in model.named_modules():
        averages = isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None
        if averages and bn == "batch":
            raise UnsupportedOp(
                "batch-norm with momentum=None is not supported", at=name,
                why="its running statistics are averages over all batches ever seen",
                help="give it a momentum, or use bn='frozen'",
            )  # fmt: skip


def _tensors(given: Any, model: nn.Module, what: str) -> list[torch.Tensor]:
    """Examples as torch tensors; floats in the precision of the model, integers as torch's indices."""
    floats = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    found = []
    for x in given if isinstance(given, (tuple, list)) else [given]:
        if not isinstance(x, (torch.Tensor, np.ndarray)):
            raise BadShape(f"the {what} has a {type(x).__name__} in it", help="use tensors or arrays, batch first")
        try:
            tensor = torch.as_tensor(np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x)
            tensor = tensor.detach().cpu().to_dense()
        except Exception as error:
            raise BadShape(f"the {what} cannot be read", why=str(error).split("\n")[0][:200],
                           help="use floats, integers or booleans, in memory") from None  # fmt: skip
        if tensor.is_complex():
            raise BadShape(f"the {what} has complex numbers in it", help=COMPLEX[1])
        if not tensor.dim() or not tensor.shape[0]:
            raise BadShape(f"the {what} has no samples", help="the first axis is the batch, with at least one sample")
        integers = torch.bool if tensor.dtype is torch.bool else torch.int64
        found.append(tensor.to((floats or tensor.dtype) if tensor.is_floating_point() else integers))
    if not found:
        raise BadShape(
            f"the {what} is empty: there is no input", help="give a tensor, or a tuple with one per argument"
        )
    if len({x.shape[0] for x in found}) > 1:
        raise BadShape(f"the tensors of the {what} have different batch sizes", help="the first axis is the batch")
    return found


def _labels(target: Any, model: nn.Module, batch: int) -> torch.Tensor:
    found = _tensors(target, model, "target")
    if len(found) != 1:
        raise BadShape(f"the target has {len(found)} tensors", help="give one, and take it apart in the loss function")
    if found[0].shape[0] != batch:
        raise BadShape(
            f"the target has {found[0].shape[0]} samples, the example {batch}", why="both come from the same samples",
            help="give the target one row for every sample of the example; reshape it in the loss function",
        )  # fmt: skip
    return found[0]


def _resized(x: torch.Tensor) -> torch.Tensor:
    """The example with another number of samples, so that a batch size written into the model shows."""
    return x[torch.arange(SAMPLES) % x.shape[0]]


@dataclass(frozen=True, slots=True)
class _Result:
    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class _Loss:
    """One of LOSSES, to be added to a graph, and what it compares the output with."""

    name: str
    shape: Shape
    dtype: DType


def _in_torch(loss: str) -> bool:
    record = ops.losses()[loss].loss
    return record is not None and record.in_torch


def _target_for(loss: str, outputs: Sequence[_Result]) -> tuple[Shape, DType]:
    if len(outputs) != 1:
        raise BadOption(
            f"the model returns {len(outputs)} tensors, but loss '{loss}' takes one",
            help="pass a function loss(output, target), and target=…",
        )  # fmt: skip
    shape = outputs[0].shape
    why = f"the output has the shape ({', '.join(map(str, shape))}), n being the number of samples"
    if not shape or not isinstance(shape[0], Batch):
        raise BadShape("the first axis of the model's output is not the batch", why=why,
                       help="transpose it, or pass a function loss(output, target) and target=…")  # fmt: skip
    record = ops.losses()[loss].loss
    if record is None or record.target != "classes":
        return shape, DType.F32
    if len(shape) < 2:
        raise BadShape(f"{loss} needs a class axis", why=why,
                       help="loss='bce_with_logits' takes one score per sample")  # fmt: skip
    return (shape[0], *shape[2:]), DType.I32


class _Returned:
    """How a model puts its results together. (torch.export undoes what happens to lists and dicts of a module.)"""

    structure: Any = None


class _WithLoss(nn.Module):
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
def _mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """The model in evaluation mode, or in its own with batch-norm in evaluation mode; afterwards as it was.

    Batch-norm is captured without its bookkeeping: which statistics it uses is decided in translation.
    """
    before = {module: module.training for module in model.modules()}
    try:
        for module in before:
            if training is not None or isinstance(module, _BatchNorm):
                module.training = False
        yield
    finally:
        for module, was in before.items():
            module.training = was


def _listed(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[Parameter, ...]:
    names: dict[int, list[str]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
    first = {same[0]: tuple(same[1:]) for same in names.values()}
    return tuple(
        Parameter(name, name.rpartition(".")[0], tuple(tensor.shape), tensor.requires_grad, first[name])
        for name, tensor in named if name in first
    )  # fmt: skip


# Capture.


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs whole graphs when an export fails; and its fused attention kernels would hide what they compute."""
    before, fast = logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled()
    logging.disable(logging.CRITICAL)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        torch.backends.mha.set_fastpath_enabled(fast)


def _export(module: nn.Module, given: Sequence[torch.Tensor], *, trains: bool, size: Any = None) -> ExportedProgram:
    """Capture with a free batch size; `given` are the caller's examples, `trains`: gradients will be computed."""
    inputs = tuple(_resized(x) for x in given)
    free = tuple({0: size or Dim("batch")} for _ in inputs)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values())
    try:
        with _quiet(), every_frame_noted(), custom_gradients.refused(trains):
            return torch.export.export(module, inputs, dynamic_shapes=(free,) if variadic else free)
    except SmidgenError:
        raise
    except Exception as error:
        raise _export_failed(error, module, given) from None


def _export_failed(error: Exception, module: nn.Module, given: Sequence[torch.Tensor]) -> ExportFailed:
    text = re.sub(r"\bs\d+\b", "batch", str(error))
    why = re.sub(r"\s+", " ", text.split("\n")[0]).strip()[:200]
    at = line_of_error(error)
    if "data-dependent" in text:
        return ExportFailed(
            "the model has data-dependent control flow", at=at, why=why,
            help="torch.where(condition, a, b) computes both and picks; sizes must not depend on values",
        )  # fmt: skip
    any_size = "write x.shape[0], not a number and not len(x); samples must not be combined with each other"
    if "Constraints violated" in text or "Specializations unexpectedly" in text:
        what = "the model does not work for every batch size"
        return ExportFailed(what, at=_line_of_guard(module, given), why=_constraint(text), help=any_size)
    try:
        with _quiet():
            torch.export.export(module, tuple(given))
    except Exception:
        return ExportFailed("torch.export cannot capture the model", at=at, why=f"{type(error).__name__}: {why}",
                            help="model(example) must run in PyTorch, and without values leaving tensors")  # fmt: skip
    return ExportFailed("the model works only for the example's batch size", at=at, why=why, help=any_size)


def _constraint(text: str) -> str:
    line = next((x for x in text.split("\n") if x.lstrip().startswith("- ")), "")
    return re.sub(r"L\['\w+'\]\.size\(\)\[0\]", "batch", line).strip(" -").split(". If you")[0][:200]


def _line_of_guard(module: nn.Module, inputs: Sequence[torch.Tensor]) -> str:
    """Where the model ties the batch size down: exported once more, torch's guards noting the user's line."""
    environments: list[Any] = []
    real = symbolic_shapes.ShapeEnv._get_sloc

    def noting(env: Any, *args: Any, **kwargs: Any) -> Any:
        environments.append(env)
        return replace(real(env, *args, **kwargs), maybe_user_loc=line_of_frame(inspect.currentframe()))

    try:
        with mock.patch.object(symbolic_shapes.ShapeEnv, "_get_sloc", noting):
            _export(module, inputs, trains=False, size=Dim.AUTO)
    except Exception:  # only a better message is at stake
        pass
    guards = environments[-1].guards if environments else []
    lines = [
        g.sloc.maybe_user_loc
        for g in guards
        if g.sloc.maybe_user_loc and g.expr.is_Relational and g.expr.rel_op == "=="
    ]
    return lines[0] if lines else ""


# Translation.


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
def _graph(
    exported: ExportedProgram,
    module: nn.Module,
    known: Known,
    *,
    bn: str,
    loss: _Loss | None = None,
    training: bool = False,
) -> tuple[Graph, tuple[_Result, ...]]:
    """The exported program as a graph, and its results: the loss first, if there is `loss` or the module has one.

    In training, the graph ends with the loss; else all results are handed out. All graphs of a model have one `known`.
    """
    wrapped = isinstance(module, _WithLoss)
    model = module.model if isinstance(module, _WithLoss) else module
    emit = Emit(Builder(), training=training, bn=bn)
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    specs = exported.graph_signature.input_specs
    inputs = [n for n, s in zip(placeholders, specs, strict=True) if s.kind is InputKind.USER_INPUT]
    walk = Walk(emit, inputs[0].meta["val"].shape[0].node.expr, wrapped)
    names = iter(_input_names(model, len(inputs) - wrapped) + ["target"] * wrapped)
    stored = _stored(emit, module, known)
    values: list[Any] = []
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            fake = node.meta["val"]
            values.append(Value(feed(emit.b, next(names), walk.shape(fake), dtype_of(fake.dtype))))
            continue
        name = _name_in_model(str(spec.target), module)
        values.append(_value_of(emit, exported, module, spec, stored))
        if spec.kind is not InputKind.CONSTANT_TENSOR and not name.endswith(COUNTED):
            walk.owners[memory_of(node) or 0] = name
    target = Value(feed(emit.b, "target", loss.shape, loss.dtype)) if loss else None
    results = [r for r in pytree.tree_leaves(walk.run(exported.graph_module, values)) if r is not None]
    kinds = [leaf.meta["val"].dtype for leaf in _outputs(exported)]
    found = [emit.value(emit.cast(value, kind)) for value, kind in zip(results, kinds, strict=True)]
    if loss:
        emit.b.src = "loss"
        found.insert(0, emit.value(named(emit, ops.losses()[loss.name].name, found[0], target)))
    if not training:
        losses = int(wrapped or loss is not None)
        for k, name in enumerate(found, -losses):
            fetch(emit.b, name, "loss" if k < 0 else "output" if k == 0 else f"output.{k}")
    graph = emit.b.graph()
    kept = _reaching(graph, found[0]) if training else dead_removed(graph)
    return kept, tuple(_Result(name, emit.b[name].shape) for name in found)


def _outputs(exported: ExportedProgram) -> list[Any]:
    [output] = [n for n in exported.graph.nodes if n.op == "output"]
    leaves = [leaf for leaf in pytree.tree_leaves(output.args[0]) if leaf is not None]
    for leaf in leaves:
        if not hasattr(leaf, "meta") or not isinstance(leaf.meta.get("val"), torch.Tensor):
            raise BadShape(f"the model returns {leaf!r}, which is not a tensor", help="return tensors only")
    return leaves


def _input_names(model: nn.Module, count: int) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    missing = count - len(names)
    return names[:count] + ([f"x{i}" for i in range(missing)] if missing > 1 or names else ["x"] * missing)


def _name_in_model(name: str, module: nn.Module) -> str:
    """Without the module around model and loss."""
    return name.removeprefix("model.") if isinstance(module, _WithLoss) else name


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
