"""What nobody reads is not translated: it may be anything. What is computed stays the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import UnsupportedOp
from tests.support.torch_compare import SAMPLES, ops_of
from tests.support.torch_models import Fn
from tests.support.torch_rows import Row, agrees_with_torch, row_of

ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, **options: Any) -> None:
    ROWS.append(row_of(name, model, *inputs, **options))


def wasted(x: Tensor) -> Tensor:
    """Nothing that could be translated."""
    return torch.special.bessel_j0(x.sort(1)[0]) + torch.arange(x.shape[0])[:, None]


def unused(x: Tensor) -> Tensor:
    wasted(x)
    return x * 2


def unused_in_a_chain(x: Tensor) -> Tensor:
    z = wasted(x)
    for _ in range(3):
        z = z.relu() + z
    z.add_(1)  # a write that nobody sees
    z[:, 0] = 3
    return x * 2


def view_read_before(x: Tensor) -> Tensor:
    """The view itself is read nowhere; what is written through it is."""
    y = x * 2
    y[:, 1].mul_(3)
    z = wasted(x)
    z.copy_(x)
    return y


def unread_halves(x: Tensor) -> Tensor:
    y = x * 1
    left, right = y[:, :2], y[:, 2:]
    right += 1
    left.sort(1)
    return y * x


def written_through_a_view(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for k in range(2):
        y[:, k] = x[:, k + 1]
    y.view(-1).add_(1)
    return y


def written_in_a_block(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4, dtype=x.dtype)
    with torch.no_grad():
        y.copy_(torch.ones(4, dtype=x.dtype))
        torch.special.bessel_j0(x)
    return x + y[0]


def seen_through_a_view(x: Tensor) -> Tensor:
    y = x * 1
    view = y[:, 1:]
    with torch.no_grad():
        y.mul_(3)
        view[:, 0].add_(1)
    return torch.cat([view, y], 1)


def read_after_a_block(x: Tensor) -> Tensor:
    with torch.no_grad():
        y, unread = x.exp(), wasted(x)
    del unread
    return x * y


def unread_counts(x: Tensor) -> Tensor:
    """As models of text do for a mask that turns out to be none."""
    b, size = x.shape
    rows, places = torch.arange(b, device=x.device), torch.arange(size)
    rows = rows[:, None, None, None]
    assert rows.dtype == places.dtype
    return x + 0 * places


def two_results(x: Tensor) -> Tensor:
    largest, _ = (x + 1).max(1)
    wasted(x).max(1)
    return largest


row("unused", unused, (4,))
row("unused-in-a-chain", unused_in_a_chain, (4,))
row("written-through-a-view", view_read_before, (4,))
row("halves", unread_halves, (4,))
row("loop-of-writes", written_through_a_view, (4,))
row("write-in-a-block", written_in_a_block, (4,))
row("write-in-a-block-seen-through-a-view", lambda x: seen_through_a_view(x.detach()), (4,))
row("half-of-a-block", read_after_a_block, (4,))
row("counts", unread_counts, (4,))
row("one-of-two-results", two_results, (4,))
row("write-into-the-input", lambda x: (x.clone().add_(1), wasted(x), x * 3)[2], (4,))


@pytest.mark.parametrize("samples", [SAMPLES, 1])
@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in ROWS])
def test_what_is_read_is_what_torch_computes(case: Row, samples: int) -> None:
    agrees_with_torch(case, samples)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)  # nobody reads it here, but the next call does
        return x


class Remembering(Counting):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.copy_(x.mean().view(1))
        return x


@pytest.mark.parametrize("kind", [Counting, Remembering])
def test_state_that_is_written_and_not_read_is_still_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(UnsupportedOp, match="changes 'seen'"):
        import_model(kind(), torch.zeros(2, 3), loss="mse")


def test_what_is_read_must_still_be_translated() -> None:
    with pytest.raises(UnsupportedOp, match=r"aten\.special_bessel_j0"):
        import_model(Fn(lambda x: x + torch.special.bessel_j0(x)), torch.zeros(2, 3), loss="mse")


class Dropped(nn.Module):
    """Two dropouts, of which the first may be for nothing."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        first = F.dropout(x, 0.5, self.training)
        return (first if self.read else x) * 1 + F.dropout(x, 0.5, self.training)


def test_a_dropout_draws_the_same_whether_another_is_read_or_not() -> None:
    keys = []
    for read in (True, False):
        train = import_model(Dropped(read).train(), torch.zeros(2, 3), loss="mse").train
        assert ops_of(train).count("dropout") == 1 + read
        keys.append([node.attrs["key"] for node in train.nodes if node.op == "dropout"][-1])
    assert keys[0] == keys[1]
