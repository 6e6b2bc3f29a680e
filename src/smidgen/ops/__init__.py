"""All operations. A family is one file here and one file of the same name in runtime/kernels."""

from . import elementwise, io  # noqa: F401  (importing a family defines its ops)
from .registry import NOT_DIFFERENTIABLE, Bits, Call, Case, N, Op, Run, all_ops, define, get

__all__ = ["NOT_DIFFERENTIABLE", "Bits", "Call", "Case", "N", "Op", "Run", "all_ops", "define", "get"]
