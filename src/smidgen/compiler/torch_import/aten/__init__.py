"""Torch's operators in terms of smidgen's: one rule each, in families like those of smidgen.ops."""

# Importing a family registers its rules; fourier comes last because it derives rules for complex numbers.
from . import (  # noqa: F401, I001
    indexing, layers, loss, matrix, movement, ordering, pointwise, recurrent, reduce, samples, scatter, sorted_rows,
    volumes, windows, fourier,
)  # fmt: skip
from .emit import Emit
from .writer import TABLE, Unsupported, Value, aten

__all__ = ["TABLE", "Emit", "Unsupported", "Value", "aten"]
