"""Recurrent layers are captured as one operator: the same graph as from torch's own, and work that does not grow with
the number of time steps."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from smidgen.compiler.graph.text import to_text
from smidgen.compiler.torch_import import recurrent_ops
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import SmidgenError
from smidgen.ir import Graph


class Sequence(nn.Module):
    """A recurrent layer and a linear one on its results, in a layout that depends on how they lie in memory."""

    def __init__(self, cell: nn.RNNBase, features: int) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(features, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, last = self.cell(x if self.cell.batch_first else x.transpose(0, 1))
        y = y if self.cell.batch_first else y.transpose(0, 1)
        state = last[0] if isinstance(last, tuple) else last
        found: torch.Tensor = self.head(y.reshape(y.shape[0], -1, y.shape[-1]).mean(1)) + state.sum((0, 2))[:, None]
        return found


CELLS = {
    "lstm": lambda: Sequence(nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), 10),
    "lstm, batch second, no bias": lambda: Sequence(nn.LSTM(4, 5, bias=False), 5),
    "gru with dropout": lambda: Sequence(nn.GRU(4, 5, 2, batch_first=True, dropout=0.5).train(), 5),
    "gru both ways": lambda: Sequence(nn.GRU(4, 5, bidirectional=True), 10),
    "rnn with tanh": lambda: Sequence(nn.RNN(4, 5, batch_first=True), 5),
    "rnn with relu": lambda: Sequence(nn.RNN(4, 5, nonlinearity="relu", batch_first=True), 5),
}


def graphs(model: nn.Module, x: torch.Tensor) -> list[tuple[str, list[str]]]:
    found = import_model(model, x, loss="cross_entropy")
    every: list[Graph | None] = [found.train, found.infer, found.evaluate]
    return [(to_text(g), [n.src for n in g.nodes]) for g in every if g is not None]


@pytest.mark.parametrize("name", CELLS)
def test_the_graph_is_that_of_torchs_own_operator(name: str) -> None:
    torch.manual_seed(0)
    model, x = CELLS[name](), torch.randn(2, 3, 4)
    whole = graphs(model, x)
    with mock.patch.object(recurrent_ops, "as_one", nullcontext):
        assert graphs(model, x) == whole


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_capturing_more_time_steps_is_no_more_work(cell: type[nn.RNNBase]) -> None:
    done = []
    for steps in (5, 40):
        model = Sequence(cell(4, 5, batch_first=True), 5)  # type: ignore[call-arg]
        with mock.patch.object(FakeTensorMode, "dispatch", autospec=True, side_effect=FakeTensorMode.dispatch) as ran:
            import_model(model, torch.randn(2, steps, 4), loss="cross_entropy")
        done.append(ran.call_count)
    assert done[0] == done[1]


def test_a_projection_is_still_refused_in_words() -> None:
    model = Sequence(nn.LSTM(4, 5, proj_size=2, batch_first=True), 2)
    with pytest.raises(SmidgenError, match="a projection of the state"):
        import_model(model, torch.randn(2, 3, 4), loss="cross_entropy")


def test_torch_is_as_it_was_afterwards() -> None:
    before = {name: getattr(torch._VF, name) for name in recurrent_ops.NAMES}
    import_model(CELLS["lstm"](), torch.randn(2, 3, 4), loss="cross_entropy")
    assert {name: getattr(torch._VF, name) for name in recurrent_ops.NAMES} == before


def test_outside_of_a_capture_the_operators_compute_what_torch_does() -> None:
    layer, x, start = nn.GRU(4, 5, batch_first=True), torch.randn(2, 3, 4), torch.zeros(1, 2, 5)
    rest = (list(layer._flat_weights), True, 1, 0.0, False, False, True)
    y, last = torch.ops.smidgen.gru.input(x, start, *rest)
    assert torch.equal(y, layer(x)[0])
    assert torch.equal(last, layer(x)[1])
