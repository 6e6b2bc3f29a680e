"""Networks of the field against PyTorch: a part of `make parity` in which any two settings meet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks import parity
from smidgen import api
from smidgen.report import parity as rules

HEAVY = ("resnet18", "vgg11", "proxyless", "proxyless_bn", "mobilenetv2")  # their kinds are there in smaller networks
NETS = [name for name in parity.NETS if name not in HEAVY]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=pytest.mark.xdist_group(row.net)) for row in parity.pairwise(NETS)]
)
def test_training_equals_pytorch(row: parity.Row) -> None:
    result = parity.measure(row)
    assert result["passed"], result


FAST = [parity.Row(net, *(("momentum", 8) if i % 2 else ("adam", 1)), "full", "frozen") for i, net in enumerate(NETS)]


@pytest.mark.parametrize("row", [pytest.param(r, id=str(r), marks=pytest.mark.xdist_group(r.net)) for r in FAST])
def test_gradients_of_fast_kernels_are_those_of_pytorch(row: parity.Row) -> None:
    result = parity.measure_fast(row)
    assert result["passed"], result


class Attention(nn.Module):
    """The keys' bias changes nothing: it starts at zero, and its gradient is rounding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.out = (nn.Linear(8, width) for width in (8, 8, 8, 3))
        nn.init.zeros_(self.k.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.out(mixed.mean(1))


def test_a_parameter_that_never_leaves_zero_is_measured_against_the_others() -> None:
    model, optimizer = Attention(), smidgen.Adam(1e-2)
    rng = np.random.default_rng(0)
    batches = [([rng.standard_normal((4, 5, 8)).astype(np.float32)], np.arange(4) % 3) for _ in range(10)]
    entries = api.build(model, batches[0][0][0], optimizer=optimizer)

    def reference(dtype: torch.dtype) -> rules.Reference:
        return rules.Reference(model, "cross_entropy", optimizer, entries.learns, "frozen", dtype)

    verdict = rules.free_run(entries, reference, batches)
    assert (verdict.limit, verdict.worst < 1e-11) == (rules.A_LIMIT, True), verdict
    state = reference(torch.float64)
    state.step(*batches[0])
    wrong = {name: value + (1e-3 if name == "k.bias" else 0) for name, value in state.values().items()}
    sizes = {name: float(name != "k.bias") for name in entries.learns}
    assert rules.state_errors(entries.graphs["train"], wrong, state, sizes)["k.bias"] > rules.A_LIMIT


def test_what_is_no_number_is_as_far_off_as_can_be() -> None:
    nothing = np.array([np.nan, 1.0])
    assert rules.relative(nothing, np.ones(2)) == float("inf")
    assert rules.gradient_errors({"w": nothing}, {"w": np.ones(2)}, {"w": 1.0}) == {"w": float("inf")}
