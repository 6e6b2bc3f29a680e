"""Arrays in and out: what callers give, as the program reads it, and state in the user's layout and in the stored one.

Nothing here broadcasts or rounds silently; torch tensors are taken without importing torch.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadData, BadOption
from ..ir import Array, DType, Quant, Step, batch_axis
from .buffer import Buffer

F32, I32, BYTE = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8)


def listed(x: Any) -> list[Any]:
    """The inputs of a model: a tuple or list has one for each."""
    return list(x) if isinstance(x, (tuple, list)) else [x]


def to_numpy(value: Any, name: str) -> Array:
    """A numpy array from numpy, torch or nested lists, without importing torch."""
    if type(value) is np.ndarray:
        return value
    try:
        detach = getattr(value, "detach", None)
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise BadData(f"'{name}' has masked elements", help="leave such samples out, or give its .filled(0)")
        if detach is None:
            return np.asarray(value)
        tensor = detach().cpu()
        if not str(tensor.layout).endswith("strided"):
            raise BadData(f"'{name}' is a sparse tensor", help="give its .to_dense()")
        if "float" in str(tensor.dtype) and str(tensor.dtype) not in ("torch.float32", "torch.float64"):
            tensor = tensor.float()  # numpy has no bfloat16
        return np.asarray(tensor.numpy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadData(f"'{name}' is not an array of numbers", why=str(error).partition("\n")[0]) from error


def as_f32(array: Array, name: str) -> Array:
    if array.dtype == F32:
        return np.asarray(array, order="C")  # the same object if it fits: the machine knows its address
    with np.errstate(over="ignore"):
        single = np.asarray(array, np.float32, order="C")
    if array.dtype.kind == "f" and bool(np.any(np.isinf(single) & np.isfinite(array))):
        raise BadData(f"'{name}' holds a number that does not fit single precision")
    return single


def as_state(value: Any, name: str, shape: Sequence[int]) -> Array:
    """A value for a tensor of this shape: never broadcast."""
    array = to_numpy(value, name)
    if array.dtype.kind not in "fiub":
        raise BadData(f"'{name}' has dtype {array.dtype}, the program wants numbers")
    if array.shape != tuple(shape):
        raise BadData(f"'{name}' has shape {array.shape}, the program has {tuple(shape)}")
    return as_f32(array, name)


def check_layout(array: Array, buffer: Buffer) -> None:
    """Raise unless dtype and shape are the program's, for any number of samples."""
    floating = buffer.dtype is DType.F32
    if array.dtype.kind not in ("fiub" if floating else "iub"):
        wanted = "numbers" if floating else "bytes" if buffer.is_scaled else "integers"
        raise BadData(
            f"'{buffer.name}' has dtype {array.dtype}, the program wants {wanted}",
            help="uint8, as they come from the camera: the program makes numbers of them" if buffer.is_scaled else "",
        )
    shape = buffer.shape(1)
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or (array.ndim and array.shape[0] % buffer.per_sample):
        want = ", ".join(str(d) for d in ("n" if buffer.per_sample == 1 else f"{buffer.per_sample}n", *shape[1:]))
        raise BadData(f"'{buffer.name}' has shape {array.shape}, the program wants ({want})")


def as_buffer(value: Any, buffer: Buffer) -> Array:
    """The caller's array as the program reads it, or an error that says what is wrong."""
    array = to_numpy(value, buffer.name)
    check_layout(array, buffer)
    return as_dtype(array, buffer)


def as_dtype(array: Array, buffer: Buffer) -> Array:
    """In the program's dtype and order of elements; the same object if it has them."""
    if buffer.dtype is DType.F32:
        return as_f32(array, buffer.name)
    if (array.dtype == I32 and buffer.dtype is DType.I32) or (array.dtype == BYTE and buffer.is_scaled):
        return np.asarray(array, order="C")
    whole = array.astype(I32)
    if not (whole == array).all():
        raise BadData(f"'{buffer.name}' holds an integer that does not fit 32 bits")
    if buffer.dtype is DType.I32:
        return np.ascontiguousarray(whole)
    most, kind = (255, "bytes, 0 to 255") if buffer.is_scaled else (1, "booleans")
    if array.size and not 0 <= whole.min() <= whole.max() <= most:
        bad = int(whole.min() if whole.min() < 0 else whole.max())
        raise BadData(f"'{buffer.name}' holds {bad}, the program wants {kind}")
    return np.ascontiguousarray(array, dtype=buffer.dtype.numpy)


def check_number_of_arrays(given: Sequence[Any], wanted: Sequence[Buffer]) -> None:
    if len(given) != len(wanted):
        names = ", ".join(b.name for b in wanted)
        raise BadData(f"{len(given)} arrays given, {len(wanted)} wanted: {names}")


def number_of_samples(arrays: Sequence[Array], buffers: Sequence[Buffer]) -> int:
    """The same for all of them, and at least one."""
    counts: dict[str, int] = {b.name: a.shape[0] // b.per_sample for a, b in zip(arrays, buffers, strict=True)}
    n = next(iter(counts.values()))
    if len(set(counts.values())) != 1:
        said = ", ".join(f"{k} {v}" for k, v in counts.items())
        raise BadData("inputs have different numbers of samples", why=said)
    if n < 1:
        raise BadData("no samples given", help="give at least one sample")
    return n


def rows(array: Array, buffer: Buffer, first: int, count: int) -> Array:
    """The part of a result that belongs to these samples."""
    axis = batch_axis(buffer.dims) or 0
    k = buffer.per_sample
    return array[(slice(None),) * axis + (slice(first * k, (first + count) * k),)]


# -- state -------------------------------------------------------------------------------------------------------


FROZEN: Final = ":frozen"
"""Behind the name of a parameter: all of it, where only a slice of it learns."""
INT8: Final = ":int8"
SCALE: Final = ":scale"
MAP: Final = ":map"
"""Behind the name of a constant that is stored as int8: its numbers, and the scale of each index of its first axis;
of a parameter that learns in integers, gain of the gradient, scale and offset of each index of its first axis."""


def laid(value: Array, steps: Sequence[Step]) -> Array:
    """From the user's layout to the stored one."""
    for kind, arg in steps:
        value = _STEPS[kind](value, arg)
    return value


_STEPS: Final[Mapping[str, Callable[[Array, tuple[int, ...]], Array]]] = {
    "reshape": lambda value, shape: value.reshape(shape),
    "permute": lambda value, axes: np.transpose(value, axes),
    "take": lambda value, arg: np.take(value, arg[1:], arg[0]),  # axis, indices
}


def laid_shape(shape: tuple[int, ...], steps: Sequence[Step]) -> tuple[int, ...]:
    """Of the result of `laid`; ValueError if there is none."""
    for kind, arg in steps:
        if kind == "take":
            axis, *indices = arg
            fits = 0 <= axis < len(shape) and all(0 <= i < shape[axis] for i in indices) and len(indices) > 0
            fits = fits and len(set(indices)) == len(indices)
        else:
            fits = math.prod(shape) == math.prod(arg) if kind == "reshape" else sorted(arg) == list(range(len(shape)))
        if not fits or kind not in _STEPS:
            raise ValueError(f"{kind} {arg} does not fit {shape}")
        shape = _after(shape, kind, tuple(arg))
    return shape


def of_whole(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps of a tensor of which a slice learns, for all of it."""
    return tuple(step for step in steps if step[0] != "take")


def _after(shape: tuple[int, ...], kind: str, arg: tuple[int, ...]) -> tuple[int, ...]:
    if kind == "take":
        return (*shape[: arg[0]], len(arg) - 1, *shape[arg[0] + 1 :])
    return arg if kind == "reshape" else tuple(shape[axis] for axis in arg)


def laid_quant(quant: Quant, shape: tuple[int, ...], step: Step) -> Quant | None:
    """Of a quantized value of that shape after the step; None if the axis of its scales does not survive."""
    kind, arg = step
    if kind == "take":
        return None
    return quant.reshaped(shape, arg) if kind == "reshape" else quant.permuted(arg)


def added_step(steps: Sequence[Step], step: Step) -> tuple[Step, ...]:
    """The steps and then one more; two of a kind are one."""
    if not steps or steps[-1][0] != step[0] or step[0] == "take":
        return (*steps, step)
    kind, before = steps[-1]
    return (*steps[:-1], (kind, step[1] if kind == "reshape" else tuple(before[p] for p in step[1])))


def unlaid(value: Array, shape: Sequence[int], steps: Sequence[Step], rest: Array | None = None) -> Array:
    """From the stored layout back to the user's. Beside a slice is `rest`, laid out as it was before that was taken, or
    zeros."""
    shapes = [tuple(shape)]
    for kind, arg in steps:
        shapes.append(_after(shapes[-1], kind, tuple(arg)))
    for (kind, arg), before in zip(reversed(list(steps)), reversed(shapes[:-1]), strict=True):
        if kind == "take":
            whole = np.zeros(before, value.dtype) if rest is None else np.array(rest, value.dtype).reshape(before)
            whole[(slice(None),) * arg[0] + (list(arg[1:]),)] = value.reshape(_after(before, kind, tuple(arg)))
            value = whole
        else:
            value = value.reshape(before) if kind == "reshape" else np.transpose(value, np.argsort(arg))
    return np.ascontiguousarray(value).reshape(tuple(shape))


# Parameters in integers: (user's) number = scale · q + offset, one of each for an index of the stored first axis.


def quant_map(quant: Quant) -> Array:
    """f32[3, outputs]: gain of a gradient, scale, offset. What was folded in with the factor 0 is dead: scale 0."""
    factors = np.asarray(quant.factors or np.ones(len(quant.scales)))
    alive = factors != 0
    by = np.where(alive, factors, 1.0)
    shifts = np.asarray(quant.shifts or np.zeros(len(quant.scales)))
    rows = factors, np.where(alive, np.asarray(quant.scales) / by, 0.0), np.where(alive, -shifts / by, 0.0)
    return np.stack(rows).astype(np.float32)


def packed_map(quant: Quant) -> str:
    """Scales and offsets, as a program says of its state."""
    return base64.b64encode(quant_map(quant)[1:].astype("<f4").tobytes()).decode()


def unpacked_map(text: Any) -> Array:
    """f32[2, outputs]; ValueError for what is no map."""
    data = base64.b64decode(text, validate=True)
    if not data or len(data) % 8:
        raise ValueError("a map of integers has another size")
    rows: Array = np.frombuffer(data, "<f4").reshape(2, -1).astype(np.float32)
    if not np.isfinite(rows).all():
        raise ValueError("a map of integers is not finite")
    return rows


def from_integers(q: Array, rows: Array) -> Array:
    scale, offset = (row.reshape(-1, *[1] * (q.ndim - 1)).astype(np.float64) for row in rows)
    return np.asarray(q * scale + offset, np.float32)


def to_integers(value: Array, rows: Array, limit: int) -> Array:
    """The nearest; 0 where the scale is."""
    scale, offset = (row.reshape(-1, *[1] * (value.ndim - 1)).astype(np.float64) for row in rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(scale != 0, np.floor((value - offset) / scale + 0.5), 0.0)
    found: Array = np.clip(np.nan_to_num(q), -limit, limit)
    return found


def check_numbers(array: Array, buffer: Buffer, first: int = 0) -> None:
    """Raise unless all are finite; `first` is the number of the first sample at hand."""
    with np.errstate(over="ignore", invalid="ignore"):
        if buffer.dtype is not DType.F32 or math.isfinite(array.sum(dtype=np.float32)):  # takes no memory
            return
    if bool(np.isfinite(array).all()):  # only their sum is too large
        return
    where = np.unravel_index(int(np.isfinite(array).argmin()), array.shape)
    sample = first + int(where[0]) // buffer.per_sample
    value = "NaN" if np.isnan(array[where]) else "an infinite number"
    raise BadData(
        f"'{buffer.name}' holds {value} in sample {sample} (counted from 0)",
        help="leave such samples out, or replace the numbers: numpy.nan_to_num",
    )


def steps_of(fact: Mapping[str, Any]) -> list[Step]:
    """How a state tensor gets from the user's layout to the stored one, as a program describes it."""
    return [(kind, tuple(arg)) for kind, arg in fact["steps"]]


def check_mapping(values: Any, function: str, example: str) -> None:
    if not isinstance(values, Mapping):
        raise BadOption(f"{function} takes a mapping from names, not a {type(values).__name__}", help=example)


__all__ = [
    "FROZEN", "INT8", "MAP", "SCALE", "added_step",
    "as_buffer", "as_dtype", "as_state", "check_layout", "check_mapping", "check_number_of_arrays", "check_numbers",
    "from_integers", "laid", "laid_shape", "listed", "number_of_samples", "of_whole", "packed_map", "quant_map", "rows",
    "steps_of", "to_integers", "to_numpy", "unlaid", "unpacked_map",
]  # fmt: skip
