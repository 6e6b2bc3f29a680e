"""One row of a table of torch models, and what is asked of it: the imported graphs give torch's outputs, loss and
gradients in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from smidgen.compiler.graph import interp
from smidgen.compiler.imported import Imported
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.torch_import.capture import import_model
from smidgen.ir import Array, DType, Role
from tests.support.torch_compare import SAMPLES, close, feeds, leaves, spread_loss


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]  # shapes without the batch, or (highest, shape) for integers below `highest`
    options: dict[str, Any] = field(default_factory=dict)


def made(case: Row) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(3)
    model = case.make().double()
    generator = torch.Generator().manual_seed(5)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            value = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.data = value * value + 0.3 if "var" in name else value * 0.7 + 0.1
    inputs = []
    for spec in case.inputs:
        if len(spec) == 2 and isinstance(spec[1], tuple):
            inputs.append(torch.randint(0, spec[0], (SAMPLES, *spec[1]), generator=generator))
        else:
            inputs.append(torch.randn((SAMPLES, *spec), generator=generator, dtype=torch.float64))
    return model, inputs


def check_row(case: Row) -> None:
    model, inputs = made(case)
    target = torch.zeros(SAMPLES, 1, dtype=torch.float64)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    imported = import_model(model, inputs, loss=spread_loss, target=target, **case.options)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]

    values = feeds(imported, inputs, target)
    env = interp.run(imported.infer, values, n=SAMPLES)
    wanted = leaves(copy.deepcopy(model).eval()(*inputs))
    assert len(imported.infer.outputs) == len(wanted)
    for name, shape, want in zip(imported.infer.outputs, imported.output_shapes, wanted, strict=True):
        close(env[name], want)
        assert imported.infer[name].shape == shape
        assert imported.infer[name].dtype is dtype_named(want)

    learned = [p.name for p in imported.parameters if p.name in imported.train.tensors]
    fed = {f"{n}.fed": x for n, x in zip(imported.train.inputs, inputs, strict=False) if x.is_floating_point()}
    fed = {name: x for name, x in fed.items() if name in imported.train.tensors}
    whole, grads = autodiff(imported.train, imported.loss, [*learned, *fed])
    env = interp.run(whole, values, n=SAMPLES)
    twin = as_trained(model, case.options.get("bn", "frozen"))
    leaf = {id(x): x.clone().requires_grad_() for x in inputs if x.is_floating_point()}
    loss = spread_loss(twin(*[leaf.get(id(x), x) for x in inputs]), target)
    close(env[imported.loss], loss)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    for name in learned:
        gradient = twin.get_parameter(name).grad
        if name in grads:
            close(env[grads[name]], torch.zeros(1) if gradient is None else gradient, 1e-8)
        else:
            assert gradient is None or not gradient.any()
    for name, x in fed.items():
        gradient = leaf[id(x)].grad
        if name in grads:
            close(env[grads[name]], torch.zeros(x.shape) if gradient is None else gradient, 1e-8)
        else:
            assert gradient is None or not gradient.any()
    check_statistics(imported, env, twin)


def dtype_named(x: torch.Tensor) -> DType:
    return DType.F32 if x.is_floating_point() else DType.U8 if x.dtype is torch.bool else DType.I32


def as_trained(model: nn.Module, bn: str) -> nn.Module:
    """What torch trains: the mode the model is in, batch-norm as asked."""
    twin = copy.deepcopy(model)
    for module in _norms(twin):
        module.train(bn == "batch")
    return twin


def check_statistics(imported: Imported, env: dict[str, Array], twin: nn.Module) -> None:
    """Running statistics after the step, if the graph updates them; a layer used twice moves them twice."""
    newest: dict[str, str] = {}
    owner: dict[str, str] = {}
    for node in imported.train.nodes:
        if node.op == "running_stats":
            for old, new in zip(node.ins, node.outs, strict=False):
                assert imported.train[new].role is Role.STAT
                owner[new] = owner.get(old, old)
                assert newest.get(owner[new], owner[new]) == old
                newest[owner[new]] = new
    tracked = {n for n, _ in twin.named_buffers() if n.rpartition(".")[2] in ("running_mean", "running_var")}
    assert set(newest) == (tracked if any(m.training for m in _norms(twin)) else set())
    for name, new in newest.items():
        close(env[new], twin.get_buffer(name))


def _norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
