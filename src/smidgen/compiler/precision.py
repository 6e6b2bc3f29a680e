"""In what a network computes: f32, or int8 with choices of how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..errors import BadOption


@dataclass(frozen=True, slots=True)
class Int8:
    """A network in int8, calibrated on the samples that are given as `data`. `precision="int8"` is this with what is
    usual.

    `calibrate` says how the range of a value is told from the samples: "minmax", "percentile" (without the outermost
    0.01 %), or "mse" (with the least squared error). `rounding` is how a change of a weight becomes whole steps:
    "stochastic", which learns on the mean what f32 learns, or "nearest". `head`, the last layers, are "f32", or "int8"
    like all others. `gradients` of values in int8 are "f32", or "int16" with one exponent for each, in half the
    memory."""

    calibrate: str = "minmax"
    rounding: str = "stochastic"
    head: str = "f32"
    gradients: str = "f32"


KNOWN: Final = {
    "calibrate": ("minmax", "percentile", "mse"),
    "rounding": ("stochastic", "nearest"),
    "head": ("f32", "int8"),
    "gradients": ("f32", "int16"),
}
"""What may be said of a network in int8."""


def checked_precision(precision: Any) -> Int8 | None:
    """None: f32."""
    if isinstance(precision, str) and precision in ("f32", "int8"):
        return Int8() if precision == "int8" else None
    if not isinstance(precision, Int8):
        help = "precision='f32', 'int8', or smidgen.Int8(calibrate='mse')"
        raise BadOption(f"precision={precision!r:.60} is not known", help=help)
    for name, known in KNOWN.items():
        value = getattr(precision, name)
        if not isinstance(value, str) or value not in known:
            said = " or ".join(f"'{word}'" for word in known)
            raise BadOption(f"Int8({name}={value!r:.60}) is not understood", help=f"{name}={said}")
    return precision


__all__ = ["Int8", "checked_precision"]
