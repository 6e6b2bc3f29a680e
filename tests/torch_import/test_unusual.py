"""Unusual models and wrong arguments: right, or a documented error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.graph import interp
from smidgen.errors import BadData, BadOption, UnsupportedOp
from smidgen.report.parity import Reference, relative
from smidgen.train.job import Job
from tests.support.arguments import compiled

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


class Twice(nn.Module):
    """One batch-norm layer at two places: torch updates its statistics twice a step."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(self.b(self.a(x))))
        return y


class Settings(nn.Module):
    """Names that smidgen might want for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = nn.Parameter(torch.ones(4))
        self.register_buffer("counter", torch.full((4,), 2.0))
        self.loss = nn.Linear(4, 3)

    def forward(self, target: Tensor) -> Tensor:
        y: Tensor = self.loss(target * self.lr + self.counter)
        return y


class TwiceOnOne(nn.Module):
    """One batch-norm layer twice on the same tensor: the second update takes in the same values again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y: Tensor = self.b(x) + 2 * self.b(x)
        return y


@pytest.mark.parametrize("kind", [Twice, TwiceOnOne])
def test_a_norm_used_twice_keeps_its_statistics_as_torch_does(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, optimizer = kind(), smidgen.SGD(0.01, momentum=0.9)
    entries = api.build(model, X, optimizer=optimizer, bn="batch")
    reference = Reference(model, "cross_entropy", optimizer, entries.learns, "batch", torch.float64)
    train, job = entries.graphs["train"], Job(encode(entries))
    state = interp.initial_state(train)
    for _ in range(3):
        feeds = dict(zip(train.inputs, [X, Y], strict=True))
        _, state = interp.advance(train, state, feeds, n=6)
        reference.step([X], Y)
        job.train_step(X, Y)
    for name, want in reference.values().items():
        assert relative(state[name], want) < 1e-10, name
        assert relative(job.state_dict()[name], want) < 1e-4, name


def test_parameters_may_have_any_name() -> None:
    torch.manual_seed(0)
    model, optimizer = Settings(), smidgen.Adam(0.01)
    job = smidgen.compile(model, X, optimizer=optimizer)
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    for _ in range(3):
        job.train_step(X, Y)
        reference.step([X], Y)
    for name in ("lr", "loss.weight", "loss.bias"):
        assert relative(job.state_dict()[name], reference.values()[name]) < 1e-5, name


def test_outputs_with_several_rows_a_sample_and_without_samples() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.l(x.reshape(-1, 2))
            return y, y.t(), (self.l.weight**2).sum()

    model = Model()
    job = smidgen.compile(
        model, X, loss=lambda out, t: ((out[0].reshape(-1, 6) - t) ** 2).mean(), target=np.zeros((6, 6)), batch=6
    )
    want = [value.detach().numpy() for value in model(torch.from_numpy(X))]
    for got, right in zip(job.predict(X), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)
    with pytest.raises(BadData, match="one result for all of them"):
        job.predict(np.concatenate([X, X]))


@pytest.mark.parametrize("label", [-(2**63), 2**31, -(2**31) - 1])
def test_labels_beyond_32_bits_are_refused(label: int) -> None:
    job = smidgen.compile(nn.Linear(4, 3), X)
    with pytest.raises(BadData, match="does not fit 32 bits"):
        job.train_step(X, np.full(6, label, np.int64))


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sgd"}, {"optimizer": 3}, {"method": None}, {"method": 5}, {"seed": 2**40}, {"seed": "a"},
     {"batch": True}, {"batch": 0}, {"bn": "train"}, {"loss": "crossentropy"}],
    ids=str,
)  # fmt: skip
def test_options_without_a_meaning_are_explained(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as error:
        compiled(nn.Linear(4, 3), X, **options)
    assert error.value.help


def test_a_loaded_program_reads_its_constants_from_the_file(tmp_path: Any) -> None:
    path = tmp_path / "net.smg"
    job = smidgen.compile(nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 3)), X, method="last_layer")
    job.save(path)
    again = smidgen.load(path)
    assert again.train_step(X, Y) == job.train_step(X, Y)
    with open("/proc/self/maps") as maps:
        assert str(path) in maps.read()


@pytest.mark.parametrize("bn", ["frozen", "batch"])
@pytest.mark.parametrize("method", ["full", "last_layer"])
def test_a_norm_over_the_features_of_a_flattened_image(method: str, bn: str) -> None:
    """The image lies in another order in memory than its features are counted in."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(72)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.copy_(torch.rand(72) + 0.5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), norm, nn.ReLU(), nn.Linear(72, 4))
    x, y = torch.randn(6, 3, 5, 5).numpy(), Y
    optimizer = smidgen.SGD(0.01, momentum=0.9)
    job = smidgen.compile(model.eval(), x, method=method, bn=bn, optimizer=optimizer)
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, bn, torch.float64)
    for _ in range(3):
        job.train_step(x, y)
        reference.step([x], y)
    for name in job.plan.learns:
        assert relative(job.state_dict()[name], reference.values()[name]) < 1e-5, name


# -- gradients that torch.export would not see -------------------------------------------------------------------------


def doubled_parameter() -> nn.Module:
    model = nn.Linear(6, 3)
    model.weight.register_hook(lambda g: 2 * g)
    return model


def doubled_module() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model[1].register_full_backward_hook(lambda module, grads, outs: tuple(2 * g for g in grads))
    return model


class DoubledValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.a(x)
        hidden.register_hook(lambda g: 2 * g)
        return self.b(hidden)


class OneMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(6, 6)
        self.u, self.v = nn.Parameter(whole), nn.Parameter(whole.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.u @ self.v)[:, :3]


@pytest.mark.parametrize(
    ("make", "said", "at"),
    [
        (doubled_parameter, "a hook that may change gradients", "weight"),
        (doubled_module, "a hook that may change gradients", "1"),
        (DoubledValue, "a hook that may change gradients", "test_unusual.py"),
        (OneMemory, "'u' and 'v' are one memory", "v"),
    ],
)
def test_what_would_train_something_else_is_refused(make: Any, said: str, at: str) -> None:
    with pytest.raises(UnsupportedOp, match=said) as caught:
        smidgen.compile(make(), torch.randn(4, 6))
    assert at in caught.value.at


def test_hooks_on_what_does_not_learn_do_not_matter() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model[0].weight.register_hook(lambda g: 2 * g)
    model[0].requires_grad_(False)
    smidgen.compile(model, torch.randn(4, 6)).train_step(torch.randn(4, 6), torch.arange(4) % 3)


def test_gradients_by_frequency_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(12, 3))
    ids = torch.randint(0, 5, (4, 3))
    with pytest.raises(UnsupportedOp, match="divided by how often"):
        smidgen.compile(model, ids)


class Centred(nn.Module):
    """A sample's output depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.a(x)
        return hidden - hidden.mean(0, keepdim=True)


def test_samples_that_depend_on_each_other_are_not_predicted_in_parts() -> None:
    x = torch.randn(6, 6)
    job = smidgen.compile(Centred(), x[:4])
    assert job.predict(x[:4]).shape == (4, 3)
    with pytest.raises(BadData) as caught:
        job.predict(x)
    assert caught.value.why == "'output' of a sample depends on the others"
