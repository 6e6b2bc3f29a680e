"""Writes to places given by an index or a mask, and rows that a mask picks: outputs and gradients are torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import RunFailed, UnsupportedOp
from tests.support.torch_models import Fn
from tests.support.torch_rows import Row, agrees_with_torch, row_of

ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, **options: Any) -> None:
    ROWS.append(row_of(name, model, *inputs, **options))


def own(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device)


def put(x: Tensor, at: Any, value: Any, accumulate: bool = False) -> Tensor:
    return torch.ops.aten.index_put(x * 2, at, value, accumulate)


def assigned(x: Tensor, at: Any, value: Any) -> Tensor:
    y = x * 2
    y[at] = value
    return y + x


def places(count: int, size: int) -> Tensor:
    """Different ones for each sample and column."""
    return torch.stack([torch.arange(count) * 2 % size, (torch.arange(count) + 1) % size], -1)


# Along one axis.
row("scatter-number", lambda x, i: x.scatter(1, i, 0.5), (5,), (5, (3,)))
row("scatter-number-in-place", lambda x, i: torch.zeros_like(x).scatter_(1, i, 1) * x, (5,), (5, (2,)))
row("scatter-values", lambda x, i: x.scatter(1, i.argsort(1)[:, :3], x[:, 1:4] * 3), (5,), (90, (5,)))
row("scatter-values-of-a-part", lambda x: x.scatter(1, places(2, 5).expand(x.shape[0], 2, 2), x[:, :2, :2] * 3), (5, 4))
row("scatter-last-axis", lambda x, i: x.scatter(-1, i, -1.0), (3, 5), (5, (3, 2)))
row("scatter-into-a-table", lambda x, w: x + w.scatter(0, torch.tensor([[3, 0]]), w[:1] * 2), (4, 2), weights=[(4, 2)])
row("scatter-into-integers", lambda i, j: i.scatter(1, j, 7), (90, (6,)), (6, (2,)))
row("scatter-add", lambda x, i: x.scatter_add(1, i, x.square()), (5,), (5, (5,)))
row("scatter-add-first-axis", lambda x, i: x.scatter_add(1, i, x[:, 1:] * 2), (5, 4), (5, (4, 4)))
row("scatter-add-wide", lambda x, i: torch.zeros(x.shape[0], 9).to(x).scatter_add(1, i, x), (5,), (9, (5,)))
for _how in ("sum", "mean", "amax", "amin"):
    for _own in (True, False):
        row(
            f"scatter-reduce-{_how}-{_own}",
            lambda x, i, how=_how, own=_own: x.scatter_reduce(1, i, x.square() - x, how, include_self=own),
            (6,),
            (3, (6,)),
        )
row("index-add", lambda x: x.index_add(1, torch.tensor([0, 3, 0]), x[:, :3] * x[:, 1:4], alpha=2), (5, 2))
row("index-copy", lambda x: x.index_copy(1, torch.tensor([4, 1]), x[:, :2].square()), (5, 2))
row("index-fill", lambda x: x.index_fill(2, torch.tensor([1, 0]), 3.0), (2, 4))
row(
    "numbered-through",
    lambda x, i: (
        torch.zeros(x.shape[0] * 4)
        .to(x)
        .scatter_reduce(0, (i + 4 * own(x)[:, None]).view(-1), x.reshape(-1), "amin", include_self=False)
        .view(-1, 4)
    ),
    (6,),
    (4, (6,)),
)
row(
    "numbered-through-added",
    lambda x, i: torch.zeros(x.shape[0] * 4).to(x).scatter_add(0, (i + 4 * own(x)[:, None]).view(-1), x.view(-1)),
    (6,),
    (4, (6,)),
)

# By several indices.
row("put-constant", lambda x: put(x, [None, torch.tensor([1, 3])], x[:, :2]), (5, 2))
row("put-a-number", lambda x: assigned(x, (slice(None), torch.tensor([1, -1])), 0.5), (5, 2))
row("put-twice-at-a-place", lambda x: put(x, [None, torch.tensor([1, 1, 2])], x[:, :3], True), (5, 2))
row("put-own-place", lambda x, i: assigned(x, (own(x), i), 0.25), (5,), (5, ()))
row("put-own-row", lambda x, i: assigned(x, (own(x), i), x.mean(1)), (5, 3), (5, ()))
row("put-own-places", lambda x, i: put(x, [own(x)[:, None], i], x[:, :3], True), (5, 2), (5, (3,)))
row("put-from-the-end", lambda x, i: assigned(x, (own(x), i - 5), x[:, 0]), (5, 2), (5, ()))
row("put-two-axes", lambda x, i, j: put(x, [own(x), i, j], x[:, 0, 0]), (5, 4), (5, ()), (4, ()))
row("put-table", lambda x, w: x + put(w, [torch.tensor([[0], [2]]), torch.tensor([1, 0])], w[:2, :2]), (3, 4),
    weights=[(3, 4)])  # fmt: skip
row(
    "put-apart",
    lambda x: put(x, [None, torch.tensor([0, 1]), None, torch.tensor([2, 0])], x[:, :2, :, 0].transpose(0, 1)),
    (2, 4, 3),
)

# By a mask.
row("mask-number", lambda x, i: assigned(x, i == 1, 0.5), (4,), (3, (4,)))
row("mask-row", lambda x, i, w: assigned(x, i == 1, w), (4, 3), (3, (4,)), weights=[(3,)])
row("mask-row-of-one", lambda x, i, w: assigned(x, i == 1, w[None]), (4, 3), (3, (4,)), weights=[(3,)])
row("mask-added", lambda x, i, w: put(x, [i == 1], w, True), (4, 3), (3, (4,)), weights=[(3,)])
row(
    "mask-behind", lambda x, w: assigned(x, (slice(None), torch.tensor([True, False, True])), w), (3, 2), weights=[(2,)]
)


def ended(x: Tensor, i: Tensor) -> Tensor:
    """The row at the last mark of each sample; there is one at the end."""
    mask = torch.cat([i[:, :-1], torch.zeros_like(i[:, :1])], 1).eq(0)
    alone = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    torch._check(x[alone, :].shape[0] // x.shape[0] >= 1)
    return x[alone, :].view(x.size(0), -1, x.size(-1))[:, -1, :]


def begun(x: Tensor, i: Tensor) -> Tensor:
    mask = torch.cat([torch.ones_like(i[:, :1]), torch.zeros_like(i[:, 1:])], 1).bool()
    return x[mask].view(x.shape[0], -1, x.shape[-1])[:, 0] + x.mean(1)


row("last-of-mask", ended, (4, 3), (2, (4,)))
row("first-of-mask", begun, (4, 3), (2, (4,)))

# Nothing at all.
row("split-with-nothing", lambda x: torch.cat(torch.split(x.square(), [4, 0], dim=-1), -1), (3, 4))
row("slice-of-nothing", lambda x: torch.cat([x[..., :-4], x[..., -4:].exp()], -1), (3, 4))
row("moved-nothing", lambda x: torch.cat([x[..., 4:].transpose(1, 2), x.transpose(1, 2)], 1), (3, 4))
row("nothing-is-assigned", lambda x: assigned(x, (slice(None), slice(2, 2)), 1.0), (3, 4))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("case", ROWS, ids=[r.name for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: Row, samples: int) -> None:
    agrees_with_torch(case, samples)


class LastMark(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, i: Tensor) -> Tensor:
        x = self.words(i)
        return self.head(x[i.eq(2), :].view(i.size(0), -1, 4)[:, -1, :])


def test_a_sample_without_a_mark_is_an_error_as_in_torch() -> None:
    model = LastMark()
    marked = torch.tensor([[3, 2, 5], [2, 4, 4]])
    job = smidgen.compile(model, marked)
    np.testing.assert_allclose(job.predict(marked), model(marked).detach().numpy(), atol=1e-6)
    with pytest.raises(RuntimeError):
        model(torch.tensor([[3, 3, 5], [2, 4, 4]]))
    with pytest.raises(RunFailed):
        job.train_step(torch.tensor([[3, 3, 5], [2, 4, 4]]), np.array([0, 1]))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda x: x[x > 0].sum(), "depends on values"),
        (lambda x: x[(x > 0).any(-1)].view(x.shape[0], -1, 3)[:, 1], "depends on values"),
        (lambda x: x.scatter(0, torch.zeros_like(x, dtype=torch.int64), 1.0), "other samples"),
        (lambda x: x.index_put((torch.tensor([0]),), x[:1]), "samples"),
        (lambda x: x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.int64), x, "prod"), "prod"),
    ],
)
def test_what_mixes_samples_or_has_no_size_is_refused(model: Any, why: str) -> None:
    with pytest.raises(UnsupportedOp, match=why) as refused:
        import_model(Fn(model), torch.randn(2, 4, 3), loss="mse")
    assert refused.value.help
