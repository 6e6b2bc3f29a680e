"""How rule (b) judges a gradient from several tries, and what the reference of rule (a) is. Needs torch."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from smidgen import SGD
from smidgen.compiler.pipeline import lower
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import BadOption
from smidgen.report import parity
from smidgen.report.parity import A_LIMIT, B_LIMIT, F32_SLACK, judged_gradient
from smidgen.report.proof import Proof, prove_model

CASES = {
    "one good try is enough": ([3e-2, 5e-6, 1e-2], [2e-6, 2e-6, 2e-6], True),
    "no digits in float32": ([6e-4, 5e-4], [2e-4, 3e-4], True),
    "wrong where torch is right": ([2e-3] * 9, [3e-6] * 9, False),
    "wrong where torch is usually right": ([2e-3] * 9, [3e-2] * 4 + [3e-6] * 5, False),
    "thresholds in every try, torch lucky once": ([4e-3, 6e-3, 9e-3], [3e-3, 2e-5, 5e-3], True),
    "far worse than torch with thresholds in every try": ([3e-2, 4e-2, 5e-2], [3e-3, 1e-3, 5e-3], False),
    "not a number": ([np.inf, np.inf], [1e-6, 1e-6], False),
    "not a number there either": ([1e-3, 1e-3], [np.inf, np.inf], False),
    "only one try": ([1e-3], [], False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_judged_by_its_best_try_or_where_torch_misses_too_by_its_usual_one(name: str) -> None:
    ours, theirs, right = CASES[name]
    error, limit = judged_gradient(ours, theirs)
    assert (error <= limit) is right


def test_the_limit_is_that_of_the_rule_where_a_try_is_within_it() -> None:
    assert judged_gradient([5e-6, 1.0], [1.0, 1.0]) == (5e-6, B_LIMIT)
    assert judged_gradient([3e-4, 1.0], [1e-4, 1.0]) == (3e-4, F32_SLACK * 1e-4)


class Upcast(nn.Module):
    """Asks for float32 by name, as libraries do: a position, a norm, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.ones(x.shape[0], 6, dtype=torch.float32).cumsum(1).sin()
        h = self.inner(x) + place
        wide = h.float()
        h = h * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6).to(h.dtype)
        return self.outer(torch.softmax(h, -1, dtype=torch.float32).type_as(h) + torch.linspace(0, 1, 6))


MODELS = {
    "the sixth of hardsigmoid": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.Hardsigmoid(inplace=True), nn.Linear(6, 5), nn.Hardsigmoid(), nn.Linear(5, 3)
    ),
    "float32 by name": Upcast,
}


@pytest.mark.parametrize("name", MODELS)
def test_single_precision_in_a_model_of_doubles_is_not_a_difference(name: str) -> None:
    """Biases that start at zero show it in full."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    optimizer = SGD(2**-6)
    rng = np.random.default_rng(0)
    batches = [((rng.standard_normal((2, 4)).astype(np.float32),), np.array([0, 2]))] * 3
    imported = import_model(model, batches[0][0], loss="cross_entropy")
    entries = lower(imported, optimizer=optimizer, method="bias", batch=2)
    reference = partial(parity.Reference, model, "cross_entropy", optimizer, entries.learns, "frozen")
    verdict = parity.free_run(entries, reference, batches)
    assert verdict.passed
    assert A_LIMIT < verdict.limit < 1e-6
    assert "torch-f64 moves by" in verdict.where
    assert torch.get_default_dtype() is torch.float32


class Normed(nn.Module):
    """torch takes the `eps` of the norm by the type of its input: what it is of float32 counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.RMSNorm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.norm(self.inner(x) * 1e-3) + nn.functional.rms_norm(x, (4,)).sum(1, keepdim=True))


def proof_of(model: nn.Module, lr: float) -> Proof:
    rng = np.random.default_rng(0)
    shapes = [(2, 4)] * 20
    batches = [((rng.standard_normal(shape).astype(np.float32),), rng.integers(0, 3, shape[0])) for shape in shapes]
    return prove_model(model, "model", batches, "cross_entropy", "full", SGD(lr, momentum=0.9), "frozen")


def test_a_norm_without_eps_has_that_of_single_precision() -> None:
    torch.manual_seed(0)
    proof = proof_of(Normed(), 0.01)
    assert proof.passed
    assert proof.verdicts[0].limit == A_LIMIT


class Steep(nn.Module):
    """Scores beyond float32, not beyond float64."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.power = nn.Linear(4, 3), nn.Parameter(torch.tensor(35.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(x) * 1e30 * self.power.clamp(max=35).exp()


def test_a_training_that_diverges_in_torch_is_nothing_to_compare_with() -> None:
    torch.manual_seed(0)
    with pytest.raises(BadOption, match=r"no numbers any more after \d+ steps(.|\n)*--lr 1e-06"):
        proof_of(Steep(), 1e-5)


def test_a_network_whose_forward_pass_leaves_a_weight_behind_is_copied() -> None:
    """The old weight_norm computes `weight` in each forward pass, with the graph of that pass."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = nn.utils.weight_norm(nn.Linear(4, 3))
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2))
    learns = {name: name for name, _ in model.named_parameters()}
    reference = parity.Reference(model, "cross_entropy", SGD(0.1), learns, "frozen", torch.float64)
    x, y = np.random.default_rng(0).standard_normal((5, 4)), np.arange(5) % 2
    reference.step((x,), y)
    (ours, _), (theirs, _) = reference.single().gradients((x,), y), reference.gradients((x,), y)
    assert ours.keys() == theirs.keys() == learns.keys()
    for name in learns:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
