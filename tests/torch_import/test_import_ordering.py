"""Sorting, top-k and routing to experts: outputs and gradients are torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smidgen
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import UnsupportedOp
from smidgen.report.parity import Reference, relative
from tests.support.torch_models import Fn
from tests.support.torch_rows import Row, agrees_with_torch, row_of

ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, **options: Any) -> None:
    ROWS.append(row_of(name, model, *inputs, **options))


row("topk", lambda x: x.topk(2)[0], (5,))
row("topk-indices", lambda x: x.topk(3)[1], (5,))
row("topk-of-all", lambda x: x.topk(5)[0] * torch.arange(5), (5,))
row("topk-one", lambda x: x.topk(1)[0], (1,))
row("topk-smallest", lambda x: x.topk(2, largest=False), (7,))
row("topk-first-axis", lambda x: x.topk(2, dim=1), (5, 4))
row("topk-middle-axis", lambda x: x.topk(2, dim=-2), (3, 5, 4))
row("topk-of-integers", lambda i: i.topk(2, dim=-1)[0], (90, (6,)))
row("topk-twice", lambda x: x.topk(2)[0].sum(-1) * x.topk(3)[0][:, 2] + x.mean(1), (5,))
row("topk-masked", lambda x: x.masked_fill(x < 0.5, -torch.inf).topk(3)[0].exp(), (4,))
row("topk-of-a-table", lambda x, w: x + w.topk(2, dim=0)[0].sum(0), (4,), weights=[(5, 4)])
row("sort", lambda x: x.sort(), (5,))
row("sort-descending", lambda x: x.sort(1, descending=True)[0] * torch.arange(5)[:, None], (5, 3))
row("sort-stable", lambda i: torch.sort(i, stable=True, dim=-1), (3, (9,)))
row("sort-stable-descending", lambda i: torch.sort(i, stable=True, dim=-1, descending=True), (3, (9,)))
row("argsort", lambda x: x.gather(1, x.argsort(-1).argsort(-1)) + x, (6,))
row("argsort-stable", lambda i: i.argsort(stable=True), (3, (8,)))
row("msort", lambda x, w: x * w.msort(), (4, 3), weights=[(4, 3)])
row("kthvalue", lambda x: x.kthvalue(2)[0] + x.kthvalue(4, keepdim=True)[0][:, 0], (5,))
row("median", lambda x: (x.median(1)[0], x.median(-1, keepdim=True)[0]), (4, 5))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("case", ROWS, ids=[r.name for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: Row, samples: int) -> None:
    agrees_with_torch(case, samples)


def test_equal_values_have_places_of_their_own() -> None:
    model = Fn(lambda x: x.topk(4)[1])
    imported = import_model(
        model, torch.zeros(2, 5), loss=lambda y, t: y.float().mean() + t.mean(), target=torch.zeros(2)
    )
    from smidgen.compiler.graph import interp

    full = np.full((2, 5), -np.inf)
    env = interp.run(imported.infer, {imported.infer.inputs[0]: full}, n=2)
    assert (np.sort(env["output"], 1) == np.arange(4)).all()


# Mixtures of experts, as transformers writes them.


def sorted_experts(x: Tensor, chosen: Tensor, weight: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    """All tokens of a batch in the order of their experts, one product for each expert."""
    k, experts = chosen.shape[-1], up.shape[0]
    ids = chosen.reshape(-1)
    ids, perm = torch.sort(ids)
    rows = x[perm // k]
    counts = torch.histc(ids.float(), bins=experts, min=0, max=experts - 1)
    ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
    found = grouped(rows, up, ends)
    found.add_(bias[ids])
    gate, value = found.chunk(2, dim=-1)
    found = grouped(F.silu(gate) * value, down, ends) * weight.reshape(-1)[perm].unsqueeze(-1)
    inverse = torch.empty_like(perm)
    inverse[perm] = torch.arange(perm.size(0))
    return found[inverse].view(x.shape[0], k, -1).sum(1)


@torch.library.custom_op("smidgen_test::grouped_mm_fallback", mutates_args=())
def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    y, start = x.new_zeros(x.shape[0], w.shape[2]), 0
    for i, end in enumerate(ends.tolist()):
        y[start:end] = x[start:end] @ w[i]
        start = end
    return y


@grouped.register_fake
def _(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[2])


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> Any:
    x, w, ends = ctx.saved_tensors
    dx, dw, start = torch.zeros_like(x), torch.zeros_like(w), 0
    for i, end in enumerate(ends.tolist()):
        dx[start:end], dw[i] = dy[start:end] @ w[i].T, x[start:end].T @ dy[start:end]
        start = end
    return dx, dw, None


grouped.register_autograd(_backward, setup_context=_kept)


def picked_experts(x: Tensor, chosen: Tensor, weight: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    """The matrices of each token's experts, one product for each token."""
    k, ids = chosen.shape[-1], chosen.reshape(-1)
    rows = x.repeat_interleave(k, dim=0)
    gate, value = (torch.bmm(rows[:, None], up[ids]).squeeze(1) + bias[ids]).chunk(2, dim=-1)
    found = torch.bmm((F.silu(gate) * value)[:, None], down[ids]).squeeze(1) * weight.reshape(-1)[:, None]
    return found.view(x.shape[0], k, -1).sum(1)


class Mixture(nn.Module):
    """A router of groups of experts, as DeepSeek has it, in front of the experts."""

    def __init__(self, run: Any, experts: int = 6, width: int = 5, inner: int = 4, grouped: bool = False) -> None:
        super().__init__()
        self.run, self.experts, self.grouped = run, experts, grouped
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * inner) / 2)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / 2)
        self.bias = nn.Parameter(torch.randn(experts, 2 * inner))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scores = self.gate(rows).sigmoid()
        allowed = scores
        if self.grouped:
            parts = scores.view(-1, 2, self.experts // 2)
            group = parts.topk(2, dim=-1)[0].sum(-1).topk(1, dim=-1, sorted=False)[1]
            mask = torch.zeros_like(parts[..., 0])
            mask.scatter_(1, group, 1)
            spread = mask.unsqueeze(-1).expand(-1, 2, self.experts // 2).reshape(-1, self.experts)
            allowed = scores.masked_fill(~spread.bool(), float("-inf"))
        chosen = allowed.topk(2, dim=-1, sorted=False)[1]
        weight = scores.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        mixed = self.run(rows, chosen, weight, self.up, self.down, self.bias).view(*x.shape)
        return self.head((x + mixed).mean(1))


MIXTURES = {
    "sorted": lambda: Mixture(sorted_experts),
    "sorted-in-groups": lambda: Mixture(sorted_experts, grouped=True),
    "many-small-experts": lambda: Mixture(sorted_experts, experts=16, inner=2),
    "picked": lambda: Mixture(picked_experts),
}


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts_are_those_of_torch(name: str, samples: int) -> None:
    agrees_with_torch(row_of(name, MIXTURES[name], (4, 5)), samples)


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts_learn_in_c(name: str) -> None:
    torch.manual_seed(1)
    model = MIXTURES[name]()
    x, y = torch.randn(4, 6, 5), np.array([0, 1, 2, 0])
    job = smidgen.compile(model, x, optimizer=smidgen.SGD(lr=0.1, momentum=0.9))
    optimizer = smidgen.SGD(lr=0.1, momentum=0.9)
    twin = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    for _ in range(3):
        job.train_step(x, y)
        twin.step([x.numpy()], y)
    ours = job.state_dict()
    for parameter, want in twin.values().items():
        assert relative(ours[parameter], want) < 1e-5, parameter


def _running(x: Tensor) -> Tensor:
    return x.reshape(-1).sort()[0].reshape(x.shape[0], -1).cumsum(1)


@pytest.mark.parametrize(
    "model",
    [
        _running,
        lambda x: x.reshape(-1).sort()[0],
        lambda x: x.reshape(-1)[x.reshape(-1).argsort()] + x.reshape(-1),
        lambda x: x.sort(0)[0],
        lambda x: x.topk(1, dim=0)[0] + x,
    ],
)
def test_samples_in_an_order_of_their_values_are_refused(model: Any) -> None:
    with pytest.raises(UnsupportedOp, match="order") as refused:
        import_model(Fn(model), torch.randn(2, 4), loss="mse")
    assert refused.value.help
