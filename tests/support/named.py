"""A small network whose nodes carry module paths, as an imported one does, built without torch."""

from __future__ import annotations

import numpy as np

from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD, Optimizer
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.passes.fold import freeze
from smidgen.compiler.pipeline import at_batch, build
from smidgen.ir import Batch, DType, Role
from smidgen.ops.build import Builder, feed, fetch
from tests.support.small import CONV, LOSS, POOL

ALL = ("body.0.weight", "body.0.bias", "body.3.weight", "head.weight", "head.bias")


def entries(
    learn: tuple[str, ...] = ALL, optimizer: Optimizer | None = None, batch: int = 4, accumulate: bool = False,
    module: str = "body",
) -> Entries:  # fmt: skip
    """Two convolutions and a linear layer; `module` is the path of what comes before the last layer."""
    rng = np.random.default_rng(0)
    b = Builder()

    def param(name: str, *shape: int) -> str:
        return b.stored(name.replace("body", module), rng.standard_normal(shape) * 0.3, Role.PARAM)

    x = feed(b, "x", (Batch(1), 3, 8, 8), perm=(0, 2, 3, 1))
    b.src = f"{module}.0"
    h = b.add("conv2d", x, param("body.0.weight", 6, 3, 3, 3), param("body.0.bias", 6), **CONV)
    b.src = f"{module}.1"
    h = b.add("relu", h)
    b.src = f"{module}.2"
    h, _ = b.add_many("max_pool2d", h, **POOL)
    b.src = f"{module}.3"
    h = b.add("conv2d", h, param("body.3.weight", 8, 3, 3, 6), **CONV)
    b.src = ""
    h = b.add("mean", h, axes=(1, 2), keepdim=False)
    b.src = "head"
    y = b.add("linear", h, param("head.weight", 5, 8), param("head.bias", 5))
    b.src = ""
    inference = Builder(b.graph())
    fetch(inference, y, "output")
    target = feed(b, "target", (Batch(1),), DType.I32)
    b.src = "loss"
    loss = b.add("cross_entropy", y, target, **LOSS, name="loss.value")
    b.src = ""
    fetch(b, loss, "loss")
    names = tuple(name.replace("body", module) for name in learn)
    every = tuple(name.replace("body", module) for name in ALL)
    train, infer = (freeze(g, set(names), set()) for g in (b.graph(), inference.graph()))
    whole, grads = autodiff(train, loss, names)
    shapes = {p: b.data[p].shape for p in every}
    built = build(
        whole, infer, grads, optimizer or SGD(0.1, momentum=0.9), "full" if names == every else "some",
        dict.fromkeys(every, ()), shapes, accumulate, 7, parameters=every,
    )  # fmt: skip
    return at_batch(built, batch)
