"""Products of matrices, embeddings, and their gradients. Weights are [O, K]; weight gradients are sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor, batch_axis, size
from . import work
from .registry import NOT_DIFFERENTIABLE, Builder, Call, N, Param, Spec, case, define
from .traits import Channels, Int16, Integer, Layout, Rows, Stored, Taken


def demands(op: str, ins: Sequence[Tensor], *dtypes: DType) -> Callable[[bool, str], None]:
    """A function that refuses this use of `op`, with a reason, where a condition fails; checks dtypes now."""

    def check(holds: bool, why: str) -> None:
        if not holds:
            raise BadShape(f"{op}({', '.join(str(t) for t in ins)})", why=why)

    for t, dtype in zip(ins, dtypes or [DType.F32] * len(ins), strict=True):
        check(t.dtype is dtype, f"{t.name} must be {dtype.value}")
    return check


def split_rows(shape: Shape) -> tuple[Dim, Dim, Dim]:
    """Where a sample's rows (`shape` without the last axis) are: outer axes, samples, rows for each outer index."""
    axis = batch_axis(shape)
    if axis is None:
        return 1, 1, size(shape)
    batch = shape[axis]
    assert isinstance(batch, Batch)
    return size(shape[:axis]), N, size((batch.times, *shape[axis + 1 :]))


def row_sum(call: Call, axis: int, kernel: str, *own: Param, sources: int) -> Rows:
    """Of what is summed position by position: parameters are rows, positions of each, `own`, rows in all, padding above
    (there is none), and the first row."""
    dy = call.ins[0].shape
    params = [dy[axis], size(dy[axis + 1 : -1]), *own, dy[axis], 0, 0]
    words = (0, 0, len(params) - 2)
    carry = call.outs[0].bytes(1)
    return Rows("adds", words=words, params=params, sources=sources, kernel=kernel, carry_bytes=carry)


def each_row(call: Call, axis: int) -> Rows | None:
    """Rows of the last axis, whatever the others are."""
    return Rows("each") if axis < len(call.outs[0].shape) - 1 else None


# y = x wᵀ + b


def _linear_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, w, *bias = ins
    check = demands("linear", ins)
    check(len(w.shape) == 2, "the weight must be [outputs, inputs]")
    check(bool(x.shape) and x.shape[-1] == w.shape[1], "the last axis of x must be the weight's inputs")
    check(all(b.shape == w.shape[:1] for b in bias), "the bias must have one value per output")
    return [((*x.shape[:-1], w.shape[0]), DType.F32)]


def _linear_ref(x: Array, w: Array, b: Array | None = None) -> Sequence[Array]:
    y = (x.reshape(-1, x.shape[-1]) @ w.T).reshape(*x.shape[:-1], w.shape[0])
    return (y if b is None else y + b,)


def _linear_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    dy, (x, w, *bias) = str(dys[0]), node.ins
    return [
        b.add("linear_dx", dy, w) if b.need(x) else None,
        b.add("linear_dw", dy, x) if b.need(w) else None,
        *[b.add("bias_dw", dy) if b.need(name) else None for name in bias],
    ]


def _linear_params(call: Call) -> Sequence[Param]:
    """Rows, outputs, inputs: for linear(x, w) and linear_dx(dy, w)."""
    return [size(call.ins[0].shape[:-1]), *call.ins[1].shape]


def _linear_macs(call: Call) -> Dim:
    return size((*call.ins[0].shape[:-1], *call.ins[1].shape))


define(
    "linear", doc="y[…,O] = x[…,K] wᵀ[O,K] (+ b[O])",
    layout=Layout("rows"), operands={1: "weight", 2: "bias"}, widens=True,
    stored=Stored(1, int8="linear_w8", slice="linear_put"), integer=Integer("layer", "qlinear"),
    channels=lambda call: Channels(0, 1),
    scaled_weight=lambda w, a, attrs: w * a[:, None],
    infer=_linear_infer, ref=_linear_ref, vjp=_linear_vjp,
    kernels={"f32": "linear_f32"}, params=_linear_params, macs=_linear_macs, work=work.linear,
    cases=[
        case((N, 10), (4, 10), (4,)), case((N, 5, 37), (9, 37)), case((2, N, 8), (3, 8), (3,)), case((1, 1), (5, 1)),
        case((N, 300), (13, 300), (13,)), case((7,), (1, 7), (1,)),
    ],
)  # fmt: skip


DX_TILES: Final = ("linear_dx_tile", "linear_dx_add")


def _linear_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, w = ins
    check = demands("linear_dx", ins)
    check(len(w.shape) == 2, "the weight must be [outputs, inputs]")
    check(bool(dy.shape) and dy.shape[-1] == w.shape[0], "the last axis of dy must be the weight's outputs")
    return [((*dy.shape[:-1], w.shape[1]), DType.F32)]


define(
    "linear_dx", doc="dx[…,K] = dy[…,O] w[O,K]",
    infer=_linear_dx_infer, ref=lambda dy, w: (dy @ w,), vjp=NOT_DIFFERENTIABLE,
    stored=Stored(1, int8="linear_dx_w8", slice="linear_dx_put"), rows=each_row,
    tiled=lambda call, count: Taken(((1, 1),)),
    adds_tiles=lambda call: Taken(((0, len(call.ins[0].shape) - 1), (1, 0))), tiles=DX_TILES,
    kernels={"f32": "linear_dx_f32"}, params=_linear_params, macs=_linear_macs, work=work.linear_dx,
    cases=[
        case((N, 4), (4, 10)), case((N, 5, 9), (9, 37)), case((2, N, 3), (3, 8)), case((200,), (200, 21)),
        case((N, 1), (1, 1)),
    ],
)  # fmt: skip


def _tile_infer(name: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    (dy, w), (o, k), inputs = ins[:2], attrs["at"], attrs["inputs"]
    check = demands(name, ins)
    outputs, *fixed = [d for d in (dy.shape[-1], *w.shape) if isinstance(d, int)]
    check(len(fixed) == len(w.shape) >= 2 and size(w.shape[1:-1]) == 1, "w must be a matrix")
    fits = 0 <= o <= fixed[0] - outputs and 0 <= k <= fixed[-1] - inputs and inputs > 0
    check(fits, f"the tile at {o}, {k} is outside")
    shape = (*dy.shape[:-1], inputs)
    check(len(ins) == 2 or ins[2].shape == shape, "the sum must have the shape of the result")
    return [(shape, DType.F32)]


def _tile_ref(dy: Array, w: Array, at: tuple[int, int], inputs: int) -> Array:
    matrix = w.reshape(len(w), -1)
    return np.asarray(dy @ matrix[at[0] : at[0] + dy.shape[-1], at[1] : at[1] + inputs])


def _tile_params(call: Call) -> Sequence[Param]:
    dy, w = call.ins[:2]
    return [size(dy.shape[:-1]), dy.shape[-1], call["inputs"], call["at"][0], w.shape[0], call["at"][1], w.shape[-1]]


def _tile_macs(call: Call) -> Dim:
    return size((*call.ins[0].shape, call["inputs"]))


define(
    "linear_dx_tile", doc="dx[…,K] = dy[…,O] of the tile w[o:o+O, k:k+inputs], with (o, k) = at",
    infer=lambda ins, attrs: _tile_infer("linear_dx_tile", ins, attrs),
    ref=lambda dy, w, at, inputs: (_tile_ref(dy, w, at, inputs),), vjp=NOT_DIFFERENTIABLE,
    stored=Stored(1, int8="linear_dx_tile_w8", slice="linear_dx_tile_put"),
    kernels={"f32": "linear_dx_tile_f32"}, params=_tile_params, macs=_tile_macs, work=work.linear_dx,
    cases=[
        case((N, 4), (6, 13), at=(1, 2), inputs=10), case((N, 5, 9), (9, 1, 1, 37), at=(0, 0), inputs=37),
        case((200,), (270, 41), at=(64, 20), inputs=21), case((N, 1), (1, 1), at=(0, 0), inputs=1),
    ],
)  # fmt: skip

define(
    "linear_dx_add", doc="y = sum + linear_dx_tile(dy, w), as if all had been one sum; sum is the last input",
    infer=lambda ins, attrs: _tile_infer("linear_dx_add", ins, attrs), inplace=(2,),
    ref=lambda dy, w, sum, at, inputs: (sum + _tile_ref(dy, w, at, inputs),), vjp=NOT_DIFFERENTIABLE,
    stored=Stored(1, int8="linear_dx_add_w8", slice="linear_dx_add_put", behind=1),
    kernels={"f32": "linear_dx_add_f32"}, params=_tile_params, macs=_tile_macs, work=work.linear_dx,
    cases=[
        case((N, 4), (6, 13), (N, 10), at=(1, 2), inputs=10),
        case((N, 5, 9), (9, 37), (N, 5, 37), at=(0, 0), inputs=37),
        case((200,), (270, 1, 1, 41), (21,), at=(64, 20), inputs=21), case((1,), (1, 1), (1,), at=(0, 0), inputs=1),
    ],
)  # fmt: skip


def _linear_dw_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, x = ins
    check = demands("linear_dw", ins)
    check(bool(dy.shape) and dy.shape[:-1] == x.shape[:-1], "dy and x must agree but for the last axis")
    fixed = not isinstance(dy.shape[-1], Batch) and not isinstance(x.shape[-1], Batch)
    check(fixed, "the last axes must not grow with the batch")
    return [((dy.shape[-1], x.shape[-1]), DType.F32)]


def _linear_dw_sums(call: Call, axis: int) -> Rows | None:
    inside = axis < len(call.ins[0].shape) - 1
    own = call.outs[0].shape
    return row_sum(call, axis, "linear_dw_rows_f32", *own, sources=2) if inside else None


def _linear_dw_params(call: Call) -> Sequence[Param]:
    dy, x = call.ins
    return [*split_rows(dy.shape[:-1]), dy.shape[-1], x.shape[-1]]


define(
    "linear_dw", doc="dw[O,K] = Σ over rows of dyᵀ[…,O] x[…,K]",
    taken=lambda call, count: {i: Taken(((i, len(call.ins[i].shape) - 1),)) for i in range(2)},
    infer=_linear_dw_infer, vjp=NOT_DIFFERENTIABLE, batchwise=True, sink=True, row_sums=_linear_dw_sums,
    ref=lambda dy, x: (dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1]),),
    kernels={"f32": "linear_dw_f32"}, params=_linear_dw_params,
    macs=lambda call: size((*call.ins[0].shape, call.ins[1].shape[-1])), work=work.linear_dw,
    cases=[
        case((N, 4), (N, 10)), case((N, 70, 9), (N, 70, 11)), case((2, N, 3), (2, N, 8)), case((5,), (3,)),
        case((150, 6), (150, 19)), case((N * 2, 3, 1), (N * 2, 3, 1)),
    ],
)  # fmt: skip


def _bias_dw_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy = ins[0]
    check = demands("bias_dw", ins)
    check(bool(dy.shape) and not isinstance(dy.shape[-1], Batch), "dy needs a last axis of fixed size")
    return [(dy.shape[-1:], DType.F32)]


def _bias_dw_sums(call: Call, axis: int) -> Rows | None:
    inside = axis < len(call.ins[0].shape) - 1
    return row_sum(call, axis, "bias_dw_rows_f32", *call.outs[0].shape, sources=1) if inside else None


define(
    "bias_dw", doc="db[C] = Σ over all axes but the last of dy[…,C]",
    taken=lambda call, count: {0: Taken(((0, len(call.ins[0].shape) - 1),))},
    infer=_bias_dw_infer, ref=lambda dy: (dy.reshape(-1, dy.shape[-1]).sum(0),),
    vjp=NOT_DIFFERENTIABLE, batchwise=True, sink=True, rounded_sink=DType.I32, row_sums=_bias_dw_sums,
    kernels={"f32": "bias_dw_f32"}, int16=Int16("bias_dw16"),
    params=lambda call: [*split_rows(call.ins[0].shape[:-1]), call.ins[0].shape[-1]],
    cases=[case((N, 7)), case((N, 9, 10, 20)), case((2, N, 16)), case((1,)), case((130, 37))],
)  # fmt: skip


# y = a b with equal leading axes


def _matmul_sizes(a: Shape, b: Shape, ta: bool, tb: bool) -> tuple[Dim, Dim, Dim, Dim]:
    """M, K of a, K of b, N."""
    m, ka = (a[-1], a[-2]) if ta else (a[-2], a[-1])
    kb, n = (b[-1], b[-2]) if tb else (b[-2], b[-1])
    return m, ka, kb, n


def _matmul_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    a, b = ins
    check = demands("matmul", ins)
    check(len(a.shape) == len(b.shape) >= 2, "both need the same number of axes, at least two")
    check(a.shape[:-2] == b.shape[:-2], "leading axes must be equal; expand the smaller one")
    m, ka, kb, n = _matmul_sizes(a.shape, b.shape, attrs["ta"], attrs["tb"])
    check(ka == kb, f"inner sizes {ka} and {kb} differ (ta={attrs['ta']}, tb={attrs['tb']})")
    check(not isinstance(ka, Batch), "the sum would run over the samples of a batch")
    check(not (isinstance(m, Batch) and isinstance(n, Batch)), "the result would grow with the batch squared")
    return [((*a.shape[:-2], m, n), DType.F32)]


def _matmul_ref(a: Array, b: Array, ta: bool, tb: bool) -> Sequence[Array]:
    return (np.matmul(np.swapaxes(a, -1, -2) if ta else a, np.swapaxes(b, -1, -2) if tb else b),)


def _matmul_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    dy, (left, right), ta, tb = str(dys[0]), node.ins, node.attrs["ta"], node.attrs["tb"]
    m, _, _, n = _matmul_sizes(b[left].shape, b[right].shape, ta, tb)
    flat = len(b[left].shape) == 2

    def sum_over_batch(*rows: tuple[str, bool]) -> str:
        """firstᵀ second, whose rows (after a transpose where True) are samples: linear_dw's order allows splitting."""
        return b.add("linear_dw", *[b.add("permute", name, perm=(1, 0)) if turn else name for name, turn in rows])

    def d_left() -> str:
        if isinstance(n, Batch) and flat:
            rows = ((dy, True), (right, not tb))
            return sum_over_batch(*(rows[::-1] if ta else rows))
        return b.add("matmul", right, dy, ta=tb, tb=True) if ta else b.add("matmul", dy, right, ta=False, tb=not tb)

    def d_right() -> str:
        if isinstance(m, Batch) and flat:
            rows = ((left, ta), (dy, False))
            return sum_over_batch(*(rows[::-1] if tb else rows))
        return b.add("matmul", dy, left, ta=True, tb=ta) if tb else b.add("matmul", left, dy, ta=not ta, tb=False)

    return [d_left() if b.need(left) else None, d_right() if b.need(right) else None]


def _matmul_params(call: Call) -> Sequence[Param]:
    m, k, _, n = _matmul_sizes(call.ins[0].shape, call.ins[1].shape, call["ta"], call["tb"])
    return [size(call.ins[0].shape[:-2]), m, k, n, int(call["ta"]), int(call["tb"])]


def _matmul_macs(call: Call) -> Dim:
    m, k, _, n = _matmul_sizes(call.ins[0].shape, call.ins[1].shape, call["ta"], call["tb"])
    return size((*call.ins[0].shape[:-2], m, k, n))


define(
    "matmul", doc="y[…,M,N] = a[…,M,K] b[…,K,N]; with ta, a is […,K,M]; with tb, b is […,N,K]; equal leading axes",
    layout=Layout("product"), operands={0: "weight", 1: "weight"},
    infer=_matmul_infer, ref=_matmul_ref, vjp=_matmul_vjp,
    kernels={"f32": "matmul_f32"}, params=_matmul_params, macs=_matmul_macs, work=work.matmul,
    cases=[
        case((N, 5, 70), (N, 70, 6), ta=False, tb=False), case((N, 2, 5, 7), (N, 2, 9, 7), ta=False, tb=True),
        case((3, 7, 17), (3, 7, 20), ta=True, tb=False), case((N, 7, 21), (N, 4, 7), ta=True, tb=True),
        case((N, 8), (8, 19), ta=False, tb=False), case((N, 8), (3, 8), ta=False, tb=True),
        case((8, 3), (8, N), ta=True, tb=False), case((8, 3), (N, 8), ta=True, tb=True),
        case((3, 8), (N, 8), ta=False, tb=True), case((8, N), (3, 8), ta=True, tb=True),
        case((1, 1), (1, 1), ta=False, tb=False),
    ],
)  # fmt: skip


# Rows of a table


def _embedding_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    w, index = ins
    check = demands("embedding", ins, DType.F32, DType.I32)
    check(len(w.shape) == 2, "the table must be [rows, width]")
    return [((*index.shape, w.shape[1]), DType.F32)]


def _embedding_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    w, index = node.ins
    return [b.add("embedding_dw", str(dys[0]), index, rows=b[w].shape[0]) if b.need(w) else None, None]


def _indices(rows: int, *shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.integers(0, rows, shape).astype(np.int32)


define(
    "embedding", doc="y[…,D] = row index[…] of w[V,D]", operands={0: "table"},
    infer=_embedding_infer, ref=lambda w, index: (w[index],), vjp=_embedding_vjp,
    kernels={"f32": "embedding_f32"}, params=lambda call: [call.ins[1].size, *call.ins[0].shape],
    cases=[case((11, 5), _indices(11, 3, 4)), case((2, 1), _indices(2, 6)), case((5, 40), _indices(5))],
)  # fmt: skip


def _embedding_dw_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, index = ins
    check = demands("embedding_dw", ins, DType.F32, DType.I32)
    check(bool(dy.shape) and dy.shape[:-1] == index.shape, "dy must have one row for each index")
    return [((attrs["rows"], dy.shape[-1]), DType.F32)]


def _embedding_dw_ref(dy: Array, index: Array, rows: int) -> Sequence[Array]:
    dw = np.zeros((rows, dy.shape[-1]), dy.dtype)
    np.add.at(dw, index, dy)
    return (dw,)


define(
    "embedding_dw", doc="dw[V,D] = Σ of the rows of dy[…,D] whose index is v; rows = V",
    infer=_embedding_dw_infer, ref=_embedding_dw_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True, sink=True,
    kernels={"f32": "embedding_dw_f32"},
    params=lambda call: [*split_rows(call.ins[1].shape), call["rows"], call.ins[0].shape[-1]],
    cases=[
        case((3, 4, 5), _indices(7, 3, 4), rows=7), case((60, 1), _indices(3, 60), rows=3),
        case((6, 70), _indices(20, 6), rows=20),
    ],
)  # fmt: skip
