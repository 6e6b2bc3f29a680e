"""Torch's operators in terms of smidgen's: one rule each, in families like those of smidgen.ops."""

from . import indexing, layers, loss, matrix, movement, pointwise, recurrent, reduce, samples  # noqa: F401  importing a family registers its rules
from .emit import Emit
from .writer import TABLE, Unsupported, Value, aten

__all__ = ["TABLE", "Emit", "Unsupported", "Value", "aten"]
