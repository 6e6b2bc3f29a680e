"""A graph as a torch module: PyTorch's own meaning of a network that a method has changed.

Every node is torch's function of that name, and gradients are torch's: nothing but the graph is smidgen's. Images are
NHWC, weights of convolutions OHWI, as everywhere in graphs; parameters have the user's names and layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadOption
from ..ir import Graph, Role, Step, at
from ..program.arrays import unlaid

Pair = tuple[int, int]
ONE: Final = (1, 1)


class TorchGraph(nn.Module):  # type: ignore[misc]
    """The prediction of a forward graph. `shapes` are those of parameters and statistics in the user's layout."""

    def __init__(self, graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        missing = sorted({node.op for node in graph.nodes} - set(FUNCTIONS))
        if missing:
            raise BadOption(
                "this network cannot be compared with PyTorch after a method has changed it",
                why=f"nothing here says what {', '.join(missing)} is in torch",
                help="a method that leaves the network as it is: full, bias, last_layer, sparse_update",
            )
        self._graph = graph
        self._encoded: dict[str, str] = {}  # torch does not take names with dots
        for tensor in graph.of_role(Role.PARAM, Role.STAT):
            shape, steps = shapes[tensor.name], graph.layouts.get(tensor.name, ())
            value = torch.tensor(unlaid(graph.data[tensor.name], shape, steps))
            self._encoded[tensor.name] = f"tensor{len(self._encoded)}"
            if tensor.role is Role.PARAM:
                self.register_parameter(self._encoded[tensor.name], nn.Parameter(value))
            else:
                self.register_buffer(self._encoded[tensor.name], value)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        found = dict(super().named_parameters(*args, **options))
        return ((name, found[own]) for name, own in self._encoded.items() if own in found)

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        found = dict(super().named_buffers(*args, **options))
        return ((name, found[own]) for name, own in self._encoded.items() if own in found)

    def forward(self, *inputs: Tensor) -> Any:
        graph, n = self._graph, len(inputs[0])
        stored = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        dtype = next((p.dtype for p in stored.values() if p.is_floating_point()), torch.float32)
        given = [x.to(dtype) if x.dtype is torch.uint8 else x for x in inputs]
        values = dict(zip(graph.inputs, given, strict=True))
        for tensor in graph.of_role(Role.CONST):
            value = torch.tensor(graph.data[tensor.name])
            values[tensor.name] = value.to(dtype) if value.is_floating_point() else value
        values |= {name: laid(value, graph.layouts.get(name, ())) for name, value in stored.items()}
        kinds = {"f32": dtype, "i32": torch.int64, "u8": torch.bool}
        for node in graph.nodes:
            attrs = at(dict(node.attrs), n)
            if "dtype" in attrs:
                attrs["dtype"] = kinds[attrs["dtype"]]
            made = FUNCTIONS[node.op](*[values[i] for i in node.ins], **attrs)
            # A second output is for the gradient alone, and torch has its own.
            values |= zip(node.outs, made if isinstance(made, tuple) else (made,), strict=False)
        found = tuple(values[name] for name in graph.outputs)
        return found if len(found) > 1 else found[0]


def laid(value: Tensor, steps: Sequence[Step]) -> Tensor:
    """From the user's layout to the stored one."""
    for kind, arg in steps:
        value = value.reshape(arg) if kind == "reshape" else value.permute(arg)
    return value


# -- torch's functions of our ops --------------------------------------------------------------------------------------


def _channels_first(x: Tensor) -> Tensor:
    return x.movedim(-1, 1)


def _channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1)


def _conv2d(
    x: Tensor, w: Tensor, b: Tensor | None = None, *,
    stride: Pair = ONE, padding: tuple[Pair, Pair] = ((0, 0), (0, 0)), dilation: Pair = ONE, groups: int = 1,
) -> Tensor:  # fmt: skip
    (top, bottom), (left, right) = padding
    image = F.pad(_channels_first(x), (left, right, top, bottom))
    return _channels_last(F.conv2d(image, _channels_first(w), b, stride, 0, dilation, groups))


def _conv_transpose2d(
    x: Tensor, w: Tensor, b: Tensor | None = None, *,
    out_hw: Pair, stride: Pair = ONE, padding: tuple[Pair, Pair] = ((0, 0), (0, 0)), dilation: Pair = ONE,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Without padding first; what padding says is cut off, and what nothing reaches is zero."""
    whole = F.conv_transpose2d(_channels_first(x), _channels_first(w), None, stride, 0, 0, groups, dilation)
    (top, _), (left, _) = padding
    height, width = whole.shape[2:]
    cut = _channels_last(F.pad(whole, (-left, out_hw[1] + left - width, -top, out_hw[0] + top - height)))
    return cut if b is None else cut + b


def _windows(
    x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out_hw: Pair, value: float
) -> Tensor:
    """The image, NCHW, as long as its windows reach, with `value` around it."""
    pads: list[int] = []
    for i in (1, 0):
        reach = (out_hw[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
        pads += [padding[i], reach - padding[i] - x.shape[2 + i]]
    return F.pad(x, pads, value=value)


def _max_pool2d(
    x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0), dilation: Pair = ONE, out_hw: Pair
) -> Tensor:
    wide = x if x.is_floating_point() else x.double()  # torch pools no int8
    image = _windows(_channels_first(wide), kernel, stride, padding, dilation, out_hw, -float("inf"))
    return _channels_last(F.max_pool2d(image, kernel, stride, 0, dilation)).to(x.dtype)


def _avg_pool2d(
    x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair = (0, 0), out_hw: Pair, count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:  # fmt: skip
    def sums(image: Tensor, around: Pair) -> Tensor:
        return F.avg_pool2d(
            _windows(image, kernel, stride, around, ONE, out_hw, 0.0), kernel, stride, divisor_override=1
        )

    image = _channels_first(x)
    counted = torch.ones_like(image[:1, :1])
    if count_include_pad:
        counted = F.pad(counted, (padding[1], padding[1], padding[0], padding[0]), value=1.0)
    counts = sums(counted, (0, 0) if count_include_pad else padding)
    return _channels_last(sums(image, padding) / (divisor or counts))


def _upsample(name: str) -> Callable[..., Tensor]:
    function = getattr(torch.ops.aten, name)

    def run(x: Tensor, *, out_hw: Pair, align_corners: bool | None = None, scale: Any = None) -> Tensor:
        how = () if align_corners is None else (align_corners,)
        found: Tensor = function(_channels_first(x), out_hw, *how, *(scale or (None, None)))
        return _channels_last(found)

    return run


def _batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, *, eps: float) -> Tensor:
    return (x - mean) / (var + eps).sqrt() * gamma + beta


def _group_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, groups: int, eps: float) -> Tensor:
    """Contiguous: torch 2 crashes where an image in another order needs no gradient, but its scale does."""
    return _channels_last(F.group_norm(_channels_first(x).contiguous(), groups, gamma, beta, eps))


def _slice(x: Tensor, *, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _pad(x: Tensor, *, pads: Sequence[Pair], value: float = 0.0) -> Tensor:
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


def _clamp(x: Tensor, *, lo: float, hi: float, closed: bool = True) -> Tensor:
    """Whether the gradient passes at the bounds is what tells clamp and hardtanh apart."""
    return torch.clamp(x, lo, hi) if closed else F.hardtanh(x, lo, hi)


def _matmul(a: Tensor, b: Tensor, *, ta: bool = False, tb: bool = False) -> Tensor:
    return torch.matmul(a.mT if ta else a, b.mT if tb else b)


def _over(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Over no axis is over none, where torch takes all of them."""
    return lambda x, axes, keepdim=False: reduce(x, axes, keepdim) if axes else x


def _turned(x: Tensor, *, perm: tuple[int, ...], stands: object = None) -> Tensor:
    return x.permute(perm)


def from_bytes(x: Tensor, scale: Sequence[float], offset: Sequence[float], axis: int) -> Tensor:
    """The numbers that bytes stand for, in the type of `x` if it is one of such numbers."""
    x = x if x.is_floating_point() else x.double()
    shape = [1] * x.ndim
    shape[axis] = len(scale)
    factor, more = (torch.tensor(values, dtype=x.dtype).reshape(shape) for values in (scale, offset))
    return x * factor + more


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "feed": _turned, "fetch": _turned, "permute": _turned,
    "reshape": lambda x, shape: x.reshape(shape), "expand": lambda x, shape: x.expand(shape),
    "slice": _slice, "pad": _pad, "concat": lambda *xs, axis: torch.cat(xs, axis),
    "cast": lambda x, dtype: x.to(dtype), "from_bytes": from_bytes,
    "fill": lambda shape, value: torch.tensor(value).expand(shape),
    "detach": lambda x: x.detach(),
    "neg": torch.neg, "scale": lambda x, by: x * by, "shift": lambda x, by: x + by,
    "exp": torch.exp, "log": torch.log, "abs": torch.abs, "square": torch.square, "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos, "erf": torch.erf,
    "pow_scalar": lambda x, exponent: x**exponent,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softsign": F.softsign, "silu": F.silu, "log_sigmoid": F.logsigmoid,
    "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "relu": torch.relu,
    "gelu": lambda x, approximate=False: F.gelu(x, approximate="tanh" if approximate else "none"),
    "elu": lambda x, alpha=1.0: F.elu(x, alpha), "leaky_relu": lambda x, slope: F.leaky_relu(x, slope),
    "softplus": lambda x, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold), "clamp": _clamp,
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_not": torch.logical_not,
    "where": lambda cond, a, b: torch.where(cond != 0, a, b),
    "sum": _over(torch.sum), "mean": _over(torch.mean), "amax": _over(torch.amax), "amin": _over(torch.amin),
    "softmax": lambda x, axis: torch.softmax(x, axis), "log_softmax": lambda x, axis: torch.log_softmax(x, axis),
    "linear": F.linear, "matmul": _matmul, "embedding": lambda w, index: F.embedding(index.long(), w),
    "conv2d": _conv2d, "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": _max_pool2d, "max_pool2d_plain": _max_pool2d, "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": lambda x, out_hw: _channels_last(F.adaptive_avg_pool2d(_channels_first(x), out_hw)),
    "adaptive_max_pool2d": lambda x, out_hw: _channels_last(F.adaptive_max_pool2d(_channels_first(x), out_hw)),
    "upsample_nearest2d": _upsample("upsample_nearest2d"), "upsample_bilinear2d": _upsample("upsample_bilinear2d"),
    "layer_norm": lambda x, gamma, beta, axes, eps: F.layer_norm(x, x.shape[x.ndim - axes :], gamma, beta, eps),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
}  # fmt: skip


__all__ = ["FUNCTIONS", "TorchGraph", "from_bytes"]
