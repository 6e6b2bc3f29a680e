"""Layers that read a weight as it is stored: w8, int8 with a scale for each output (w = q·scale, rounded to f32 once);
put, a constant and beside it a slice, which learns; both; or put8, both in int8. The result has the bits of the op with
the whole weight in f32. Made after all gradients, by compiler/passes/narrow.py and stored.py."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, Dim, DType, Tensor, size
from . import conv, gather, matrix
from .gradients16 import channel_scales, layer_scales
from .registry import NOT_DIFFERENTIABLE, Call, N, Op, Param, Spec, case, define, get
from .strides import show
from .traits import Int16, Rows, Stored, Taken, signature

PANEL: Final = 2048
"""Numbers of a panel of columns, if four of them have no more; runtime/kernels/weights.h."""


@dataclass(frozen=True, slots=True)
class Form:
    int8: bool
    slice: bool
    slice_int8: bool = False  # with the scales of the rest

    @property
    def suffix(self) -> str:
        return ("_w8" if self.int8 else "") + ("_put" if self.slice else "") + ("8" if self.slice_int8 else "")

    @property
    def types(self) -> tuple[DType, ...]:
        """Of the operands in the place of the weight."""
        if self.slice_int8:
            return DType.I8, DType.I8, DType.I32, DType.F32
        fixed = (DType.I8, DType.F32) if self.int8 else (DType.F32,)
        return fixed + ((DType.F32, DType.I32) if self.slice else ())

    @property
    def names(self) -> tuple[str, ...]:
        if self.slice_int8:
            return "q", "learned", "index", "scale"
        return (("q", "scale") if self.int8 else ("w",)) + (("learned", "index") if self.slice else ())

    @property
    def doc(self) -> str:
        if self.slice_int8:
            return "with w = put(q, learned, index)·scale along `axis`, q and learned in int8"
        fixed, end = ("q·scale", ", q in int8") if self.int8 else ("w", "")
        return f"with w = {f'put({fixed}, learned, index) along `axis`' if self.slice else fixed}{end}"


FORMS: Final = (Form(True, False), Form(False, True), Form(True, True))
INT8_SLICE: Final = Form(True, True, True)


def dequantized(q: Array, scale: Array) -> Array:
    """Numbers from -128 to 127, times the scale of their output."""
    numbers: Array = np.asarray(q).astype(scale.dtype)
    return numbers * scale.reshape(-1, *[1] * (numbers.ndim - 1))


def _rows_room(w: Sequence[int], groups: int) -> int:
    """Four outputs."""
    return min(4, w[0] // groups) * math.prod(w[1:]) * 4


def _panel_room(w: Sequence[int], groups: int) -> int:
    """Some inputs at all taps of all outputs of a group."""
    depth, inputs = w[0] // groups * math.prod(w[1:-1]), w[-1]
    width = 16 if inputs >= 16 else min(inputs, 8)
    while width >= 8 and width * depth > PANEL:
        width //= 2
    return width * depth * 4


class _Reading:
    """One op with its weight in one form."""

    def __init__(self, op: Op, form: Form, room: Callable[[Sequence[int], int], int]) -> None:
        assert op.stored is not None
        self.op, self.form, self.at, self._room = op, form, op.stored.input, room
        self.name = op.name + form.suffix

    def _split(self, ins: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Inputs before the weight, in its place, and behind it."""
        end = self.at + len(self.form.types)
        return list(ins[: self.at]), list(ins[self.at : end]), list(ins[end:])

    def _whole(self, ins: Sequence[Tensor]) -> list[Tensor]:
        """The inputs of the op itself."""
        before, (w, *_), after = self._split(ins)
        return [*before, Tensor(w.name, w.shape, DType.F32, w.role), *after]

    def _slice_of(self, weight: Sequence[Any]) -> tuple[Any, Any]:
        at = self.form.names.index("learned")
        return weight[at], weight[at + 1]

    def _own(self, call: Call) -> Call:
        return Call(tuple(self._whole(call.ins)), call.outs, _without_axis(call.attrs))

    def infer(self, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _, weight, _ = self._split(ins)
        if len(ins) != len(_operands(self.op)) + len(self.form.types) - 1:
            raise BadShape(f"{self.name} with {len(ins)} inputs", why="it has no input that may be left out")
        check = matrix.demands(self.name, weight, *self.form.types)
        if self.form.int8:
            scale = weight[self.form.names.index("scale")]
            check(scale.shape == weight[0].shape[:1], "the scale must have one value per output")
        if self.form.slice:
            learned, index = self._slice_of(weight)
            gather.check_axis(self.name, weight[0], index, attrs["axis"])
            fits = learned.shape == gather.with_axis(weight[0].shape, attrs["axis"], index.shape[0])
            check(fits, f"the slice must be {show(weight[0].shape)} with one index of axis {attrs['axis']} a place")
        return self.op.infer(self._whole(ins), _without_axis(attrs))

    def ref(self, *arrays: Array, **attrs: Any) -> Sequence[Array]:
        before, weight, after = self._split(arrays)
        if self.form.slice_int8:
            q = np.array(weight[0])
            q[(slice(None),) * attrs["axis"] + (weight[2],)] = weight[1]
            return self.op.ref(*before, dequantized(q, weight[3]), *after, **_without_axis(attrs))
        w = dequantized(*weight[:2]) if self.form.int8 else weight[0]
        if self.form.slice:
            w = np.array(w, weight[-2].dtype)
            w[(slice(None),) * attrs["axis"] + (weight[-1],)] = weight[-2]
        return self.op.ref(*before, w, *after, **_without_axis(attrs))

    def named_ref(self) -> Callable[..., Sequence[Array]]:
        """`ref`, with the names of its inputs."""

        def ref(*arrays: Array, **attrs: Any) -> Sequence[Array]:
            return self.ref(*arrays, **attrs)

        own = list(inspect.signature(self.op.ref).parameters)[: len(_operands(self.op))]
        names = [*own[: self.at], *self.form.names, *own[self.at + 1 :]]
        kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        attrs = inspect.Parameter("attrs", inspect.Parameter.VAR_KEYWORD)
        setattr(ref, "__signature__", inspect.Signature([*kinds, attrs]))  # noqa: B010
        return ref

    def params(self, call: Call) -> Sequence[Param]:
        own = self.op.params(self._own(call))
        return [*own, *self._slice(call)] if self.form.slice else own

    def _slice(self, call: Call) -> Sequence[Param]:
        """Indices of the axis, those in the slice, and numbers of each."""
        weight, axis = self._split(call.ins)[1], call["axis"]
        w, learned = weight[0].shape, self._slice_of(weight)[0].shape
        return [w[axis], learned[axis], size(w[axis + 1 :])]

    def rows(self, call: Call, axis: int) -> Rows | None:
        return None if self.op.rows is None else self.op.rows(self._own(call), axis)

    def tiled(self, call: Call, count: int) -> Taken | None:
        """Not along the axis of a slice, whose indices would be others, but where a product reads tiles of all."""
        how = None if self.op.tiled is None else self.op.tiled(self._own(call), count)
        along = self.form.slice and how is not None and (self.at, call["axis"]) in how.inputs
        return None if along and self.adds_tiles(call) is None else self._in_tiles(how)

    def adds_tiles(self, call: Call) -> Taken | None:
        return None if self.op.adds_tiles is None else self._in_tiles(self.op.adds_tiles(self._own(call)))

    def _in_tiles(self, how: Taken | None) -> Taken | None:
        """Of the weight, every operand that has the axis."""
        if how is None:
            return None
        found = list[tuple[int, int]]()
        for k, axis in how.inputs:
            if k != self.at:
                found.append((k if k < self.at else k + len(self.form.types) - 1, axis))
                continue
            own = ("q", "w", "learned", *(("scale",) if axis == 0 else ()))
            found += [(self.at + i, axis) for i, name in enumerate(self.form.names) if name in own]
        return replace(how, inputs=tuple(found))

    def macs(self, call: Call) -> Dim:
        return self.op.macs(self._own(call))

    def scratch(self, call: Call) -> Dim:
        """A convolution with one input channel a group needs none."""
        w, groups = [int(d) for d in call.ins[self.at].shape], int(call.attrs.get("groups", 1))  # type: ignore[arg-type]
        if "at" in call.attrs:
            w[0] = int(call.ins[0].shape[-1])  # type: ignore[arg-type]
        return 0 if len(w) == 4 and w[-1] == 1 and "at" not in call.attrs else self._room(w, groups)

    def kernel(self) -> Mapping[str, str]:
        own = _operands(self.op)
        types = [*own[: self.at], *self.form.types, *own[self.at + 1 :]]
        return {signature(types, [DType.F32]): f"{self.name}_f32"}


def _without_axis(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != "axis"}


def _operands(op: Op) -> list[DType]:
    """All that the op may have: with a bias, if it has one."""
    assert op.stored is not None
    return [DType.F32] * (op.stored.input + (2 if op.operand("bias") is not None else 1) + op.stored.behind)


Example = tuple[Any, tuple[int, ...], Mapping[str, Any]]
"""The first input, the shape of the weight, attributes."""


def _define(
    name: str,
    room: Callable[[Sequence[int], int], int],
    cases: Sequence[Example],
    forms: Sequence[Form] = FORMS,
    int16: Int16 | None = None,
) -> None:
    """The forms of one op."""
    op = get(name)
    has_int8_slice = INT8_SLICE in forms
    for form in forms:
        reading = _Reading(op, form, room)
        define(
            reading.name, doc=f"{name} {form.doc}",
            infer=reading.infer, ref=reading.named_ref(), vjp=NOT_DIFFERENTIABLE, kernels=reading.kernel(),
            params=reading.params, macs=reading.macs, work=op.work, scratch=reading.scratch,
            rows=None if op.rows is None else reading.rows,
            tiled=None if op.tiled is None else reading.tiled,
            adds_tiles=None if op.adds_tiles is None else reading.adds_tiles,
            tiles=tuple(tile + form.suffix for tile in op.tiles),
            inplace=tuple(k + len(form.types) - 1 for k in op.inplace),
            stored=_stored(name, reading.at, form, has_int8_slice),
            int16=int16 if form == FORMS[0] else None,
            cases=[c for i, example in enumerate(cases) for c in _cases(op, form, i, *example)],
        )  # fmt: skip


def _stored(name: str, at: int, form: Form, has_int8_slice: bool) -> Stored | None:
    """Forms of a form."""
    if not form.int8:
        return Stored(at, int8=f"{name}_w8_put")
    return Stored(at, slice=f"{name}_w8_put8") if has_int8_slice and not form.slice else None


def _cases(op: Op, form: Form, i: int, x: Any, w: tuple[int, ...], attrs: Mapping[str, Any]) -> list[Any]:
    """Of a slice: outputs and inputs, and sometimes an axis between them; one index, some, or all."""
    bias: list[Any] = [] if op.operand("bias") is None else [(_width(op, x, w, attrs),)]
    assert op.stored is not None
    bias += [(*x[:-1], attrs["inputs"])] * op.stored.behind if op.stored.behind else []
    fixed = [_int8(*w), (w[0],)] if form.int8 else [w]
    if not form.slice:
        return [case(x, *fixed, *bias, **attrs)]
    found = []
    for axis in sorted({0, len(w) - 1, *([1 + i % 2] if len(w) == 4 and i % 3 == 0 else [])}):
        count = (w[axis] + 1) // 2 if (i + axis) % 3 else 1 if i % 2 else w[axis]
        learned = (*w[:axis], count, *w[axis + 1 :])
        if form.slice_int8:
            weight = [_int8(*w), _int8(*learned), _ascending(w[axis], count), (w[0],)]
            found.append(case(x, *weight, *bias, axis=axis, **attrs))
            continue
        found.append(case(x, *fixed, learned, _ascending(w[axis], count), *bias, axis=axis, **attrs))
    return found


def _width(op: Op, x: Any, w: tuple[int, ...], attrs: Mapping[str, Any]) -> int:
    """Of the result: outputs of a layer, inputs of one that goes back."""
    (shape, _), *_ = op.infer([Tensor("x", x), Tensor("w", w)], attrs)
    return int(shape[-1])  # type: ignore[arg-type]


def _int8(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.integers(-128, 128, shape).astype(np.int8)


def _ascending(rows: int, count: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: np.sort(rng.permutation(rows)[:count]).astype(np.int32)


_IMAGES = [(x, conv._fixed(w), attrs) for x, w, attrs in conv._SETTINGS]
_BACK = [(conv._out(x, w, attrs), w, {"in_hw": x[1:3], **attrs}) for x, w, attrs in _IMAGES]
_ROWS: list[Example] = [
    ((N, 10), (4, 10), {}), ((N, 5, 37), (9, 37), {}), ((1, 1), (5, 1), {}), ((7,), (1, 7), {}),
    ((2, N, 8), (3, 8), {}),
]  # fmt: skip
_ROWS_BACK: list[Example] = [
    ((N, 4), (4, 10), {}), ((N, 5, 9), (9, 37), {}), ((2, N, 3), (3, 8), {}), ((200,), (200, 21), {}),
    ((N, 1), (1, 1), {}),
]  # fmt: skip

_TILES_BACK: list[Example] = [
    ((N, 4), (6, 13), {"at": (1, 2), "inputs": 10}), ((N, 3, 64), (130, 1, 1, 37), {"at": (64, 16), "inputs": 21}),
    ((N, 1), (1, 1), {"at": (0, 0), "inputs": 1}),
]  # fmt: skip


def _layer16(op: str, scales: Callable[[Any, Any], Any] = layer_scales) -> Int16:
    return Int16(op, starts=True, delayed=True, constant=scales)


_define("conv2d", _rows_room, _IMAGES)
_define("conv2d_dx", _panel_room, _BACK, (*FORMS, INT8_SLICE), _layer16("qconv2d_dx16"))
_define(
    "conv_transpose2d", _panel_room,
    [(x, w, {"out_hw" if k == "in_hw" else k: v for k, v in attrs.items()}) for x, w, attrs in _BACK],
)  # fmt: skip
_define("linear", _rows_room, _ROWS)
_define("linear_dx", _panel_room, _ROWS_BACK, (*FORMS, INT8_SLICE), _layer16("qlinear_dx16"))
for _tile in matrix.DX_TILES:
    _define(_tile, _panel_room, _TILES_BACK, (*FORMS, INT8_SLICE))


# The gradient of a depthwise layer in the place of the one that it is made of.


def _over_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    found = _BACK_W8.infer(ins, attrs)
    (shape, _), dy, at = found[0], ins[0].shape, conv.Window.of(attrs)
    if shape != dy or tuple(at.stride) != (1, 1) or not at.groups == shape[3] == ins[1].shape[0]:
        why = "a channel has its own weight, dx the shape of dy"
        raise BadShape(f"depthwise_dx_w8 of {ins[0]} and {ins[1]}", why=why)
    return found


def _over_scratch(call: Call) -> int:
    """Eight channels of an image, and a row."""
    _, h, w, _ = call.ins[0].shape
    return 32 * (int(h) + 1) * int(w)  # type: ignore[arg-type]


_BACK_W8: Final = _Reading(get("conv2d_dx"), FORMS[0], _panel_room)
_SAME: Final[list[dict[str, Any]]] = [
    {"stride": (1, 1), "padding": ((k // 2 * d, k // 2 * d),) * 2, "dilation": (d, d)}
    for k, d in ((3, 1), (5, 1), (3, 2))
]
define(
    "depthwise_dx_w8", doc="conv2d_dx_w8 with one weight per channel and tap, stride 1, images of equal size",
    infer=_over_infer, ref=_BACK_W8.named_ref(), vjp=NOT_DIFFERENTIABLE, params=_BACK_W8.params, macs=_BACK_W8.macs,
    kernels={signature([DType.F32, *FORMS[0].types], [DType.F32]): "depthwise_dx_w8_f32"},
    work=get("conv2d_dx").work, scratch=_over_scratch, inplace=(0,), int16=_layer16("qdepthwise_dx16", channel_scales),
    tiled=_BACK_W8.tiled,
    cases=[
        case((N, h, w, c), _int8(c, k, k, 1), (c,), in_hw=(h, w), groups=c, **attrs)
        for (h, w, c), k, attrs in zip(((7, 5, 19), (6, 6, 8), (5, 9, 3)), (3, 5, 3), _SAME, strict=True)
    ],
)  # fmt: skip
