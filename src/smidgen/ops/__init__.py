"""All operations. A family is one file here and one file of the same name in runtime/kernels."""

# Importing a family defines its ops; optim and stored_weights derive ops from those before.
from . import (  # noqa: F401, I001
    io, movement, elementwise, activation, binary, reduce, lines, matrix, conv, pool, resample, norm,
    batch_norm, moments, loss, running_loss, random, quantize, qlayers, qbinary, qpool, gradients16,
    qsums16, optim, rounded, page, gather, windows, interpolate, score, stored_weights, qslices, qback16, convert,
)  # fmt: skip
from .registry import (
    NOT_DIFFERENTIABLE,
    Bits,
    Call,
    Case,
    N,
    Op,
    Run,
    all_ops,
    border,
    define,
    find,
    get,
    is_loop,
    is_stream,
    losses,
)
from .traits import Layout, Loss

__all__ = [
    "NOT_DIFFERENTIABLE", "Bits", "Call", "Case", "Layout", "Loss", "N", "Op", "Run", "all_ops", "border", "define",
    "find", "get", "is_loop", "is_stream", "losses",
]  # fmt: skip
