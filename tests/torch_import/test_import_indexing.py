"""Indices of each sample's own, several axes at once, gathers: outputs and gradients are torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn import functional as F

import smidgen
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import RunFailed, UnsupportedOp
from smidgen.ir import Batch, DType
from smidgen.report.parity import Reference, relative
from tests.support.torch_compare import SAMPLES
from tests.support.torch_models import Fn
from tests.support.torch_rows import Row, agrees_with_torch, row_of

ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, **options: Any) -> None:
    ROWS.append(row_of(name, model, *inputs, **options))


def own(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device)


# One place or several in each sample.
row("one-place", lambda x, i: x[own(x), i], (5, 4), (5, ()))
row("one-place-of-many-axes", lambda x, i: x[own(x), i], (5, 2, 3), (5, ()))
row("places", lambda x, i: x[own(x)[:, None], i], (5, 4), (5, (7,)))
row("places-in-a-grid", lambda x, i: x[own(x)[:, None, None], i], (5, 4), (5, (2, 3)))
row("places-expanded", lambda x, i: x[own(x).unsqueeze(1).expand(-1, 3), i], (5, 4), (5, (3,)))
row("places-repeated", lambda x, i: x[own(x)[:, None].repeat(1, 3), i.long()], (5, 4), (5, (3,)))
row("places-interleaved", lambda x, i: x[own(x).repeat_interleave(3), i.view(-1)].view(-1, 3, 4), (5, 4), (5, (3,)))
row("place-from-the-end", lambda x, i: (x[own(x), -1], x[own(x), i - 3]), (5, 4), (5, ()))
row("place-of-a-token", lambda x, i: x[own(x), (i == 2).int().argmax(-1)], (6, 4), (3, (6,)))
row("last-token", lambda x, i: x[own(x), (torch.arange(6) * (i != 0).int()).argmax(-1)], (6, 4), (3, (6,)))
row("copied", lambda x, i: x[own(x).to(torch.int32).clone().long() + 0, i], (5, 4), (5, ()))
row("samples-only", lambda x: (x[own(x)], x[own(x)[:, None]].sum(1)), (5, 4))
row("samples-spread", lambda x: x[own(x)[:, None].expand(-1, 3)], (5,))
row("second-axis", lambda x, i: x.transpose(0, 1)[i, own(x)], (5, 4), (5, ()))
row("last-axis", lambda x, i: x[own(x), :, i], (2, 5), (5, ()))
row("axes-apart", lambda x, i: x[own(x)[:, None], :, i], (2, 5, 3), (5, (4,)))
row("three-axes", lambda x, i, j: x[own(x), i, j], (5, 4, 3), (5, ()), (4, ()))
row(
    "three-axes-broadcast",
    lambda x, i, j: x[own(x)[:, None, None], i[:, :, None], j[:, None]],
    (5, 4),
    (5, (2,)),
    (4, (3,)),
)
row("three-axes-one-constant", lambda x, i: x[own(x)[:, None], i, torch.tensor([3, -1])], (5, 4), (5, (2,)))
row("same-places-everywhere", lambda x: x[own(x)[:, None], torch.tensor([4, 0, 0, 2])], (5, 3))
row("same-grid-everywhere", lambda x: x[own(x)[:, None, None], torch.tensor([[4], [0]]), torch.tensor([1, 2])], (5, 3))
row("numbered-together", lambda x, i: x.reshape(-1, 4)[i + 5 * own(x)], (5, 4), (5, ()))
row(
    "numbered-together-by-steps",
    lambda x, i: x.reshape(-1, 4)[i + torch.arange(0, 5 * x.shape[0], 5)[:, None]],
    (5, 4),
    (5, (2,)),
)
row("numbered-through", lambda x: x.reshape(-1, 4)[torch.arange(5 * x.shape[0]).view(-1, 5)[:, 1:4]], (5, 4))
row("fan-out", lambda x, i: x[own(x), i] * x.mean(1) + x[own(x), i - 1], (5, 4), (5, ()))
row(
    "integers-and-booleans",
    lambda x, i, j: (i[own(i), j], (i > 1)[own(i)[:, None], j[:, None]] * x),
    (2,),
    (4, (5,)),
    (5, ()),
)

# Several axes, no sample among them.
row("table", lambda x, w: x + w[torch.tensor([[0, 1], [2, -1]]), torch.tensor([1, 0])], (2, 2, 5), weights=[(3, 2, 5)])
row("table-by-column", lambda x, w: x * w[:, torch.arange(3)[:, None], torch.arange(2)], (4, 3, 2), weights=[(4, 3, 2)])
row("table-apart", lambda x, w: x + w[torch.tensor([0, 2]), :, torch.tensor([1, 0])], (2, 4), weights=[(3, 4, 2)])
row("table-computed", lambda i, j, w: w[i, j - 1], (3, (5,)), (4, (5,)), weights=[(3, 4, 2)])
row("table-half-computed", lambda i, w: w[i, torch.arange(4)], (3, (5, 1)), weights=[(3, 4, 2)])
row("image-constant", lambda x: x[:, torch.tensor([[0], [2]]), torch.tensor([1, 3, 1])], (3, 4, 2))
row("image-apart", lambda x: x[:, torch.tensor([0, 2]), :, torch.tensor([1, 1])], (3, 2, 4))
row("relative-positions", lambda x, w: x + w[_relative(3)].permute(2, 0, 1), (2, 9, 9), weights=[(5, 5, 2)])
row("constant-by-values", lambda i: torch.arange(24).view(4, 6)[i], (4, (3,)))

# Gathers.
row("gather-several", lambda x, i: x.gather(1, i), (5,), (5, (8,)))
row("gather-first-of-two", lambda x, i: x.gather(1, i), (5, 4), (5, (3, 4)))
row("gather-second-of-two", lambda x, i: x.gather(2, i) + x.gather(-1, i[..., :1]), (5, 4), (4, (5, 6)))
row("gather-of-a-part", lambda x, i: x.gather(1, i), (5, 4), (5, (3, 2)))
row("gather-rows", lambda x, i: x.gather(1, i[..., None].expand(-1, -1, 4)), (5, 4), (5, (3,)))
row("gather-rows-repeated", lambda x, i: torch.gather(x, 1, i.unsqueeze(-1).repeat(1, 1, 4)), (5, 4), (5, (3,)))
row("gather-heads", lambda x, i: x.gather(3, i[:, None].expand(-1, 2, -1, -1)), (2, 3, 5), (5, (3, 4)))
row("gather-shared", lambda x: x.gather(-1, _turned(3, 5).expand(x.shape[0], 2, -1, -1)), (2, 3, 5))
row(
    "gather-shared-flat",
    lambda x: x.flatten(0, 1).gather(-1, _turned(3, 5)[0].expand(2 * x.shape[0], -1, -1)),
    (2, 3, 5),
)
row("gather-integers", lambda i, j: i.gather(1, j), (9, (5,)), (5, (3,)))
row("gather-booleans", lambda x, j: (x > 0).gather(1, j), (5,), (5, (3,)))
row("gather-table", lambda i, w: w.gather(0, i[:, None].expand(-1, 4)), (5, ()), weights=[(5, 4)])
row("gather-twice", lambda x, i: x.gather(1, i) * x.gather(1, i.flip(1)) + x.sum(1, keepdim=True), (5,), (5, (3,)))
row("take_along_dim", lambda x, i: torch.take_along_dim(x, i[..., None], 1), (5, 4), (5, (3,)))
row("take_along_dim-all", lambda x, w: x + torch.take_along_dim(w, torch.tensor([5, 0, 5, 1])), (4,), weights=[(2, 3)])
row("take_along_dim-wide", lambda x, i: torch.take_along_dim(x[:, None], i, -1), (5,), (5, (3, 2)))
row("many-pieces", lambda x: x.flip(1) + x[:, torch.arange(90) * 7 % 90], (90, 2))


def _relative(side: int) -> tuple[Tensor, Tensor]:
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    apart = at[:, :, None] - at[:, None] + side - 1
    return apart[0], apart[1]


def _turned(rows: int, size: int) -> Tensor:
    return (torch.arange(rows)[:, None] * 2 + torch.arange(4)).remainder(size)[None, None]


class Padding(nn.Module):
    """A mask of all pairs of places from functions of single ones, spread over all axes by indexing, or by vmap."""

    def __init__(self, mapped: bool) -> None:
        super().__init__()
        self.mapped = mapped
        self.words = nn.Embedding(5, 8)

    def forward(self, i: Tensor) -> Tensor:
        kept = i != 0
        size = i.shape[1]

        def allowed(b: Any, h: Any, q: Any, k: Any) -> Any:
            return q.new_ones((), dtype=torch.bool) & (k <= q) & kept[b, k]

        counts = [torch.arange(i.shape[0]), torch.arange(2), torch.arange(size), torch.arange(size)]
        if self.mapped:
            spread = allowed
            for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
                spread = torch.vmap(spread, in_dims=axes, out_dims=0)
            with TransformGetItemToIndex():
                mask = spread(*counts)
        else:
            b, h, q, k = counts
            mask = allowed(
                b[:, None, None, None], h[None, :, None, None], q[None, None, :, None], k[None, None, None, :]
            )
            mask = mask.expand(i.shape[0], -1, size, size)
        x = self.words(i).view(i.shape[0], size, 2, 4).transpose(1, 2)
        y: Tensor = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return y


row("mask-of-places", lambda: Padding(mapped=False), (4, (6,)))
row(
    "packed",
    lambda x, i: x * (i[own(i)[:, None, None], torch.arange(4)[:, None]] == i[own(i)[:, None, None], torch.arange(4)]),
    (4, 4),
    (3, (4,)),
)


@pytest.mark.parametrize("samples", [SAMPLES, 1])
@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: Row, samples: int) -> None:
    agrees_with_torch(case, samples)


class Picking(nn.Module):
    """Takes the state at the end token, and a few others in the order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.inside = nn.Linear(6, 5)
        self.head = nn.Linear(15, 3)

    def forward(self, tokens: Tensor, order: Tensor) -> Tensor:
        x = torch.tanh(self.inside(self.words(tokens)))
        end = x[torch.arange(x.shape[0], device=x.device), (tokens == 6).int().argmax(-1)]
        some = x.gather(1, order[..., None].expand(-1, -1, 5))
        y: Tensor = self.head(torch.cat([end, some.flatten(1)], 1))
        return y


def picking_data(samples: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(1)
    tokens, order = rng.integers(0, 7, (samples, 8)), rng.integers(0, 8, (samples, 2))
    order[0] = 7  # one place twice: its gradients add up
    return [tokens, order], rng.integers(0, 3, samples)


@pytest.mark.parametrize("method", ["full", "last_layer"])
@pytest.mark.parametrize(("samples", "batch"), [(6, 6), (1, 1), (5, 2)])
def test_compiled_it_learns_as_torch_does(samples: int, batch: int, method: str) -> None:
    torch.manual_seed(0)
    model, optimizer = Picking(), smidgen.SGD(0.1, momentum=0.9)
    inputs, labels = picking_data(samples)
    memory = smidgen.Memory(accumulate=batch < samples)
    job = smidgen.compile(model, tuple(inputs), optimizer=optimizer, method=method, batch=batch, memory=memory)
    assert {"gather_b4"} <= set(job.program.kernels)
    assert ("gather_dx_f32" in job.program.kernels) == (method == "full")
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    for _ in range(3):
        reference.step(inputs, labels)
        job.train_step(tuple(inputs), labels)
    for name, want in reference.values().items():
        assert relative(job.state_dict()[name], want) < 1e-5, name


def test_micro_batches_learn_the_same_bits() -> None:
    inputs, labels = picking_data(6)
    learned = []
    for batch in (6, 2):
        torch.manual_seed(0)
        memory = smidgen.Memory(accumulate=True)
        job = smidgen.compile(Picking(), tuple(inputs), batch=batch, memory=memory, kernels="exact")
        for _ in range(2):
            job.train_step(tuple(inputs), labels)
        learned.append(job.state_dict())
    for name, value in learned[0].items():
        np.testing.assert_array_equal(value, learned[1][name], name)


def test_a_place_outside_of_its_axis_stops_the_step() -> None:
    job = smidgen.compile(Picking(), tuple(picking_data(3)[0]))
    (tokens, order), labels = picking_data(3)
    order[1, 0] = 8
    with pytest.raises(RunFailed, match="an index is outside its axis"):
        job.train_step((tokens, order), labels)


def test_whole_rows_are_picked_without_a_mask_or_an_index_for_each_element() -> None:
    """The index of a row is not spread over its elements, and nothing has the size of places times rows."""
    row_gather = Fn(lambda x, i: x.gather(1, i[..., None].expand(-1, -1, 64)))
    graph = import_model(row_gather, (torch.zeros(2, 50, 64), torch.zeros(2, 9, dtype=torch.long)), loss="mse").infer
    assert max(t.size.times for t in graph.tensors.values() if isinstance(t.size, Batch)) == 50 * 64
    assert max(t.size.times for t in graph.tensors.values() if t.dtype is DType.I32 and isinstance(t.size, Batch)) == 9


def test_the_steps_of_vmap_are_refused_with_what_to_write_instead() -> None:
    with pytest.raises(UnsupportedOp, match=r"steps of torch\.vmap") as caught:
        import_model(Padding(mapped=True), torch.zeros(2, 6, dtype=torch.long), loss="mse")
    assert caught.value.help.startswith("broadcast instead")


MIXED = [
    ("shuffled", lambda x: x[torch.arange(x.shape[0]) + 1], "reorders the samples"),
    ("turned", lambda x: x[-torch.arange(x.shape[0])], "reorders the samples"),
    ("computed", lambda x: x * torch.arange(x.shape[0])[:, None], "counts the samples"),
    ("returned", lambda x: (x, torch.arange(x.shape[0])), "numbers of the samples"),
    ("elsewhere", lambda x, w: w[torch.arange(x.shape[0])] + x, "place along another axis"),
    ("interleaved", lambda x: x[torch.arange(x.shape[0]).repeat(2)], "mixes the numbers"),
    (
        "halves-of-the-batch",
        lambda x: torch.stack([x, x]).flatten(0, 1)[2 * torch.arange(x.shape[0])],
        "reorders the samples",
    ),
    ("other-samples", lambda x: x.gather(0, torch.zeros_like(x).long()), "values of other samples"),
]


@pytest.mark.parametrize(("model", "text"), [pytest.param(*r[1:], id=r[0]) for r in MIXED])
def test_what_would_mix_samples_is_refused_with_help(model: Any, text: str) -> None:
    shapes = [(9, 3)] if model.__code__.co_argcount == 2 else []
    with pytest.raises(UnsupportedOp, match=text) as caught:
        import_model(Fn(model, *shapes), torch.zeros(4, 3), loss=lambda o, t: t.mean(), target=torch.zeros(4))
    assert caught.value.why
    assert caught.value.help
