"""A PyTorch model as graphs: torch.export captures it with a free batch size, smidgen.aten translates it op by op.

`infer` is the model in evaluation mode, `train` the model in the mode it is in, with its loss. It is not changed.
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
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx.experimental import symbolic_shapes
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from .aten import Emit, Value
from .aten.source import line_of_error, line_of_frame
from .aten.walk import Walk, memory_of
from .aten.writer import dtype_of
from .build import Builder, feed, fetch
from .errors import BadOption, BadShape, ExportFailed, SmidgenError, UnsupportedOp, did_you_mean
from .ir import Graph, Role, Shape, dead_removed

SAMPLES = 7  # to export with: never 1, which torch takes for a constant, and rarely a size in a model
COUNTED = "num_batches_tracked"
Loss = str | Callable[..., Any]
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}


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


def import_model(model: nn.Module, example: Any, *, loss: Loss, target: Any = None, bn: str = "frozen") -> Imported:
    """Capture `model` for training with `loss` and for inference.

    `example` is one input or a tuple of them, batch dimension first. `loss` is a name, or a function of output and
    target that comes with an example `target`. `bn`: batch-norm uses its running statistics ("frozen") or those of the
    batch at hand ("batch").
    """
    _check_options(model, loss, target, bn)
    inputs = _tensors(example, model, "example")
    batch = inputs[0].shape[0]
    with _mode(model, training=False):
        exported = _export(model, inputs)
        infer, outputs = _graph(exported, model, training=False, bn=bn)
    if target is None:
        target = _target_for(str(loss), outputs, batch)
    [labels] = _tensors(target, model, "target")
    with _mode(model, training=None):
        wrapped = _WithLoss(model, LOSSES[loss] if isinstance(loss, str) else loss)
        exported = _export(wrapped, [*inputs, labels])
        train, (scalar,) = _graph(exported, wrapped, training=True, bn=bn)
    named_parameters = list(model.named_parameters(remove_duplicate=False))
    named_buffers = list(model.named_buffers(remove_duplicate=False))
    return Imported(
        train, infer, scalar.name, _listed(named_parameters), _listed(named_buffers),
        tuple(o.shape for o in outputs), batch,
    )  # fmt: skip


# What the caller gave.


def _check_options(model: nn.Module, loss: Loss, target: Any, bn: str) -> None:
    if bn not in ("frozen", "batch"):
        raise BadOption(f"bn='{bn}' is not understood", help="bn='frozen' or bn='batch'")
    if isinstance(loss, str) and loss not in LOSSES:
        raise BadOption(f"no loss named '{loss}'", help=did_you_mean(loss, LOSSES))
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
        tensor = torch.as_tensor(x).detach().cpu()
        if not tensor.dim() or not tensor.shape[0]:
            raise BadShape(f"the {what} has no samples", help="the first axis is the batch, with at least one sample")
        integers = torch.bool if tensor.dtype is torch.bool else torch.int64
        found.append(tensor.to((floats or tensor.dtype) if tensor.is_floating_point() else integers))
    if not found or len({x.shape[0] for x in found}) > 1:
        raise BadShape(f"the tensors of the {what} have different batch sizes", help="the first axis is the batch")
    return found


def _resized(x: torch.Tensor) -> torch.Tensor:
    """The example with another number of samples, so that a batch size written into the model shows."""
    return x[torch.arange(SAMPLES) % x.shape[0]]


@dataclass(frozen=True, slots=True)
class _Result:
    name: str
    shape: Shape


def _target_for(loss: str, outputs: Sequence[_Result], batch: int) -> torch.Tensor:
    if len(outputs) != 1:
        raise BadOption(
            f"the model returns {len(outputs)} tensors, but loss '{loss}' takes one",
            help="pass a function loss(output, target), and target=…",
        )  # fmt: skip
    shape = [batch if i == 0 else d for i, d in enumerate(outputs[0].shape)]
    if loss != "cross_entropy":
        return torch.zeros(shape, dtype=torch.float32)
    if len(shape) < 2:
        raise BadShape("cross_entropy needs a class axis", why=f"the output has the shape {outputs[0].shape}",
                       help="loss='bce_with_logits' takes one score per sample")  # fmt: skip
    return torch.zeros([shape[0], *shape[2:]], dtype=torch.int64)


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.training = model.training
        self.model = model
        self.loss = loss

    def forward(self, *given: torch.Tensor) -> Any:
        *inputs, target = given
        output = self.model(*inputs)
        if self.loss in LOSSES.values() and not isinstance(output, torch.Tensor):
            [output] = [leaf for leaf in pytree.tree_leaves(output) if leaf is not None]
        value = self.loss(output, target)
        if not isinstance(value, torch.Tensor) or value.dim():
            shape = tuple(value.shape)[1:] if isinstance(value, torch.Tensor) else ()
            raise BadShape(
                "the loss is not a scalar", why=f"it gives {type(value).__name__} of shape (batch, *{shape})",
                help="reduce it, for example with .mean()",
            )  # fmt: skip
        return value


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


@contextmanager
def _own_gradients_refused(training: bool) -> Iterator[None]:
    """torch.export takes only the forward half of a torch.autograd.Function, which would silently change gradients."""
    real = torch.autograd.Function.apply

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if training and not cls.__module__.startswith("torch."):
            raise UnsupportedOp(
                f"the gradient that '{cls.__name__}' defines itself is not supported",
                at=line_of_frame(inspect.currentframe()), why="torch.export keeps only the forward computation",
                help="write it with operators; hard.detach() + soft - soft.detach() passes gradients straight through",
            )  # fmt: skip
        return real.__func__(cls, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield


def _export(module: nn.Module, given: Sequence[torch.Tensor], size: Any = None) -> ExportedProgram:
    """Capture with a free batch size; `given` are the caller's examples."""
    inputs = tuple(_resized(x) for x in given)
    free = tuple({0: size or Dim("batch")} for _ in inputs)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values())
    try:
        with _quiet(), _own_gradients_refused(isinstance(module, _WithLoss)):
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
            "the model decides by values what it computes", at=at, why=why,
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
            _export(module, inputs, Dim.AUTO)
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


def _graph(
    exported: ExportedProgram, module: nn.Module, *, training: bool, bn: str
) -> tuple[Graph, tuple[_Result, ...]]:
    """The exported program as a graph, and its results."""
    wrapped = isinstance(module, _WithLoss)
    model = module.model if isinstance(module, _WithLoss) else module
    emit = Emit(Builder(), training=training, bn=bn)
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    specs = exported.graph_signature.input_specs
    inputs = [n for n, s in zip(placeholders, specs, strict=True) if s.kind is InputKind.USER_INPUT]
    walk = Walk(emit, inputs[0].meta["val"].shape[0].node.expr, wrapped)
    names = iter(_input_names(model, len(inputs) - wrapped) + ["target"] * wrapped)
    values: list[Any] = []
    first = _first_names(module)
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            fake = node.meta["val"]
            values.append(Value(feed(emit.b, next(names), walk.shape(fake), dtype_of(fake.dtype))))
            continue
        values.append(_stored(emit, exported, module, spec, first))
        tracked = str(spec.target).endswith(COUNTED)
        if spec.kind is not InputKind.CONSTANT_TENSOR and not tracked:
            walk.owners[memory_of(node) or 0] = str(spec.target).removeprefix("model.")
    results = [r for r in pytree.tree_leaves(walk.run(exported.graph_module, values)) if r is not None]
    kinds = [leaf.meta["val"].dtype for leaf in _outputs(exported)]
    outputs = []
    for k, (value, kind) in enumerate(zip(results, kinds, strict=True)):
        name = emit.value(emit.cast(value, kind))
        if not training:
            fetch(emit.b, name, "output" if k == 0 else f"output.{k}")
        outputs.append(_Result(name, emit.b[name].shape))
    graph = emit.b.graph()
    return (_reaching(graph, outputs[0].name) if training else dead_removed(graph)), tuple(outputs)


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


def _first_names(module: nn.Module) -> dict[int, str]:
    """id of a parameter or buffer → its first name in the user's model."""
    found: dict[int, str] = {}
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            found.setdefault(id(tensor), name.removeprefix("model."))
    return found


def _stored(
    emit: Emit, exported: ExportedProgram, module: nn.Module, spec: InputSpec, first: dict[int, str]
) -> torch.Tensor | Value:
    """A parameter as a tensor of the graph, in the user's layout; buffers and other constants as they are."""
    if spec.kind is InputKind.PARAMETER:
        tensor = module.get_parameter(str(spec.target))
        name = first[id(tensor)]
        if name in emit.b.tensors:
            return Value(name)
        return Value(emit.b.stored(name, tensor.detach().double().cpu().numpy(), Role.PARAM))
    if spec.kind is InputKind.BUFFER:
        tensor = module.get_buffer(str(spec.target))
        return emit.keep(tensor.detach().clone(), first[id(tensor)])
    constant = exported.constants.get(str(spec.target))
    if not isinstance(constant, torch.Tensor):
        raise ExportFailed(f"the model uses an object torch cannot export: {spec.target}", help="use tensors only")
    return emit.keep(constant.detach().clone(), str(spec.target).removeprefix("model."))


def _reaching(graph: Graph, result: str) -> Graph:
    """Without what neither the result nor any state depends on."""
    b = Builder(graph)
    outside = fetch(b, result, "kept")
    kept = dead_removed(b.graph())
    tensors = {name: t for name, t in kept.tensors.items() if name != outside}
    return kept.with_(nodes=kept.nodes[:-1], tensors=tensors, outputs=graph.outputs)
