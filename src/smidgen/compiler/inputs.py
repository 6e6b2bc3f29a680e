"""Inputs that callers give as bytes: what they stand for, checked by the example of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import BadOption, BadShape
from ..ir import Array
from ..ops.convert import MOST_CHANNELS
from ..program.arguments import is_number
from ..program.arrays import to_numpy
from ..program.buffer import SCALED_RANK

HELP: Final = "smidgen.Bytes(images, scale=1 / 255) as the example, with uint8 images; on the command line :bytes/255"


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """An example of an input that is given as bytes, the pixels of a camera, say: uint8, a quarter of the memory of
    numbers. The program makes numbers of them, `scale` times a byte plus `offset`: each a number, or one for each
    channel (the axis behind the batch)."""

    values: Any
    scale: float | Sequence[float]
    offset: float | Sequence[float] = 0.0

    @property
    def numbers(self) -> Array:
        """What the bytes stand for, computed as the program does it: in single precision, first the product."""
        q, (scale, offset) = self.checked, self.stands
        around = (1,) * (q.ndim - 2)
        factor, more = (np.array(v, np.float32).reshape(-1, *around) if len(v) > 1 else np.float32(v[0])
                        for v in (scale, offset))  # fmt: skip
        found: Array = q.astype(np.float32) * factor + more
        return found

    @property
    def checked(self) -> Array:
        """The bytes."""
        values = to_numpy(self.values, "example")
        if values.dtype.kind not in "iu" or (values.size and not 0 <= values.min() <= values.max() <= 255):
            range_ = f" with numbers from {values.min()} to {values.max()}" if values.size else ""
            raise BadShape("the example of an input of bytes has none in it", why=f"it is {values.dtype}{range_}",
                           help=HELP)  # fmt: skip
        if not 1 <= values.ndim <= SCALED_RANK:
            raise BadShape(f"an input of bytes has {values.ndim} axes", why=f"1 to {SCALED_RANK} are possible",
                           help="flatten axes, and unflatten them in the model")  # fmt: skip
        return values.astype(np.uint8)

    @property
    def stands(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Scale and offset as the program has them: in single precision, one for all or one for each channel."""
        scale, offset = (_numbers(given, name) for given, name in ((self.scale, "scale"), (self.offset, "offset")))
        if min(scale) <= 0:
            raise BadOption(f"scale={self.scale!r} of Bytes is not above zero", help=HELP)
        count = max(len(scale), len(offset))
        channels = self.checked.shape[1] if self.checked.ndim > 1 else 1
        if count > 1 and (count != channels or {len(scale), len(offset)} - {1, count}):
            raise BadOption(
                f"Bytes has {len(scale)} of `scale` and {len(offset)} of `offset`",
                why=f"the example has {channels} channels, on the axis behind the batch",
                help="one number for all channels, or one for each",
            )  # fmt: skip
        if count > MOST_CHANNELS:
            raise BadOption(f"Bytes has {count} scales", why=f"{MOST_CHANNELS} are possible",
                            help="one for all channels; scale them apart in the model")  # fmt: skip
        wide = (scale * count if len(scale) == 1 else scale, offset * count if len(offset) == 1 else offset)
        return wide


def _numbers(given: Any, name: str) -> tuple[float, ...]:
    """As single precision has them."""
    values = list(given) if isinstance(given, (tuple, list)) or np.ndim(given) == 1 else [given]
    values = [float(v) if is_number(v) or (np.ndim(v) == 0 and hasattr(v, "item")) else math.nan for v in values]
    with np.errstate(over="ignore"):
        found = tuple(float(np.float32(v)) for v in values)
    if not found or not all(map(math.isfinite, found)):
        raise BadOption(f"{name}={given!r} of Bytes is not a number, or one for each channel", help=HELP)
    return found


Stands = tuple[tuple[float, ...], tuple[float, ...]]


def in_file(stands: Stands) -> tuple[float, float]:
    """Scale and offset of the buffer, which has one of both."""
    return (stands[0][0], stands[1][0]) if len(stands[0]) == 1 else (1.0, 0.0)
