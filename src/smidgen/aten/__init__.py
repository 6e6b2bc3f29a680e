"""Torch's operators in terms of smidgen's: one rule each, in families like those of smidgen.ops."""

from . import layers, loss, matrix, movement, pointwise, reduce  # noqa: F401  importing a family registers its rules
from .emit import TABLE, Emit, Unsupported, Value, aten

__all__ = ["TABLE", "Emit", "Unsupported", "Value", "aten"]
