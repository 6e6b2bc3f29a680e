"""Networks from PyTorch that page: the same bits as without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.nets.plain import LeNet5
from benchmarks.nets.residual import ResNet8
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.errors import SmidgenError
from smidgen.train.job import Job
from tests.support import generated
from tests.support.paged import BATCH, anywhere, bits, optimizer_state, paged, same_bits

NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "lenet5": (LeNet5, (1, 28, 28)),
    "resnet8": (ResNet8, (3, 32, 32)),
}


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_that_pages_gives_the_same_bits_and_moves_what_the_plan_says(
    name: str, ahead: int, tmp_path: Path
) -> None:
    model, shape = NETWORKS[name]
    torch.manual_seed(0)
    entries = api.build(model().eval(), torch.zeros(BATCH, *shape), optimizer=SGD(0.05, momentum=0.9))
    same_bits(entries, ahead, shape, 10, tmp_path)


def test_paging_what_is_saved_makes_the_arena_smaller(tmp_path: Path) -> None:
    torch.manual_seed(0)
    entries = api.build(ResNet8().eval(), torch.zeros(8, 3, 32, 32), optimizer=SGD(0.05))
    plain, moved = encode(entries), encode(paged(entries, ahead=0))
    assert moved.arena_bytes < 0.75 * plain.arena_bytes
    assert plain.page_bytes == 0 < moved.page_bytes


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_generated_networks_give_the_same_bits(seed: int, everywhere: bool, tmp_path: Path) -> None:
    net, method, optimizer, loss, batch = generated.sample(seed + 100 * everywhere)
    net.eval()
    xs, y = generated.data(net, loss, batch, seed)
    parts = seed % 3 == 0
    optimizers = {"sgd": SGD(0.05), "momentum": SGD(0.05, momentum=0.9), "adam": Adam(1e-3)}
    try:
        entries = api.build(
            net, tuple(xs), loss=loss, optimizer=optimizers[optimizer], method=method, batch=batch, accumulate=parts,
            bn="batch" if seed % 4 == 0 and batch > 1 else "frozen",
        )  # fmt: skip
    except SmidgenError:
        pytest.skip("the network is refused")
    states = optimizer_state(entries.graphs) if seed % 2 else ()
    moved = anywhere(entries, seed) if everywhere else paged(entries, ahead=seed % 5, state=states)
    plain = Job(encode(entries), kernels="exact")
    job = Job(encode(moved), kernels="exact", page_to=tmp_path / "page")
    for step, n in enumerate((batch, max(2, batch - 1) if batch > 1 else 1, 2 * batch if parts else batch)):
        xs, y = generated.data(net, loss, n, seed + step)
        try:
            wanted = plain.train_step(tuple(xs), y)
        except SmidgenError:
            continue
        assert np.float64(job.train_step(tuple(xs), y)).tobytes() == np.float64(wanted).tobytes()
    assert bits(job) == bits(plain)
