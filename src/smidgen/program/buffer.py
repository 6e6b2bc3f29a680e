"""Memory of the caller: what an entry point takes and gives. Data only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from ..ir import Batch, DType, Shape, Tensor, at

# What one buffer may have; the same figures are in runtime/kernel.h.
MAX_RANK: Final = 8
SCALED_RANK: Final = 6  # of a buffer with scale and offset

Direction = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of the caller: one input or output of an entry point. Bytes, integers q with a scale, stand for numbers
    scale * q + offset: 1 and 0 where each channel has its own. Other u8 are yes or no."""

    name: str
    dtype: DType
    dims: Shape
    direction: Direction
    scale: float | None = None  # both are f32 numbers
    offset: float = 0.0

    @property
    def is_scaled(self) -> bool:
        return self.scale is not None

    @property
    def wrong_scale(self) -> str:
        """Why it cannot have the scale that it has; empty if it can."""
        scale = 0.0 if self.scale is None else self.scale
        fits = math.isfinite(scale) and math.isfinite(self.offset) and scale > 0
        return "" if fits and self.dtype.is_integer else "a buffer cannot have its scale"

    def shape(self, n: int) -> tuple[int, ...]:
        return tuple(at(self.dims, n))

    def bytes(self, n: int) -> int:
        return Tensor(self.name, self.dims, self.dtype).bytes(n)

    @property
    def per_sample(self) -> int:
        """Entries of the batch axis for each sample; 1 if there is no such axis."""
        return next((d.times for d in self.dims if isinstance(d, Batch)), 1)
