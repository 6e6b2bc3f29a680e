"""A small residual network with every part of the pipeline in it, built without torch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD, Optimizer
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.passes.fold import freeze
from smidgen.compiler.pipeline import at_batch, build
from smidgen.ir import Array, Batch, DType, Graph, Role
from smidgen.ops.build import Builder, feed, fetch

N = Batch(1)
ALL = ("w1", "b1", "w2", "b2", "w3", "b3")
CONV = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "out_hw": (4, 4)}
LOSS = {"label_smoothing": 0.0, "ignore_index": -100, "reduction": "mean"}


def forward(dropout: float = 0.0) -> tuple[Graph, Graph, str]:
    """(train without gradients, infer, name of the loss)"""
    rng = np.random.default_rng(0)
    b = Builder()

    def param(name: str, *shape: int) -> str:
        return b.stored(name, rng.standard_normal(shape) * 0.3, Role.PARAM)

    x = feed(b, "x", (N, 3, 8, 8), perm=(0, 2, 3, 1))
    h = b.add("relu", b.add("conv2d", x, param("w1", 6, 3, 3, 3), param("b1", 6), **CONV))
    r = b.add("conv2d", h, param("w2", 6, 3, 3, 6), param("b2", 6), **CONV)
    h = b.add("relu", b.add("add", h, r))
    if dropout:
        counter = b.stored(":counter", np.array([7, 0], np.int32), Role.SETTING)
        h = b.add("dropout", h, counter, p=dropout, key=1)
    h, _ = b.add_many("max_pool2d", h, **POOL)
    h = b.add("mean", h, axes=(1, 2), keepdim=False)
    y = b.add("linear", h, param("w3", 5, 6), param("b3", 5))
    inference = Builder(b.graph())
    fetch(inference, y, "output")
    target = feed(b, "target", (N,), DType.I32)
    loss = b.add("cross_entropy", y, target, **LOSS, name="loss.value")
    fetch(b, loss, "loss")
    return b.graph(), inference.graph(), loss


def entries(
    learn: tuple[str, ...] = ALL, optimizer: Optimizer | None = None, batch: int = 4, dropout: float = 0.0,
    accumulate: bool = False, evaluate: bool = False,
) -> Entries:  # fmt: skip
    optimizer = optimizer or SGD(0.1, momentum=0.9)
    train, infer, loss = forward(dropout)
    train, infer = freeze(train, set(learn), set()), freeze(infer, set(learn), set())
    whole, grads = autodiff(train, loss, learn)
    shapes = {p: train.data[p].shape for p in learn}
    built = build(
        whole, infer, grads, optimizer, "test", dict.fromkeys(learn, ()), shapes, accumulate, 7,
        freeze(evaluation(), set(learn), set()) if evaluate else None,
    )  # fmt: skip
    return at_batch(built, batch)


def evaluation() -> Graph:
    """Loss and output, without dropout."""
    train, infer, _ = forward()
    b = Builder(train)
    fetch(b, infer.nodes[-1].ins[0], "output")
    return b.graph()


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory, if the system has one: for tests that sync files hundreds of times."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def data(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, n).astype(np.int32)
