"""A network as a flat list of layers that a contestant without PyTorch can build: names, numbers and nothing else.

Shapes are static and in PyTorch's order. `image` marks values with channels and two spatial axes, which contestants may
keep in an order of their own; `from_image` says that a layer's inputs are such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Layer = dict[str, Any]  # op, out, ins, and the op's own numbers


def layers_of(model: nn.Module, x: torch.Tensor) -> list[Layer]:
    """Raises NotImplementedError for an operator that the list does not know. The last layer's `out` is the result."""
    exported = torch.export.export(model, (x,))
    names = {**exported.graph_signature.inputs_to_parameters, **exported.graph_signature.inputs_to_buffers}
    (source,) = exported.graph_signature.user_inputs
    tracer = _Tracer(names, str(source), x)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            tracer.add(node)
    (result,) = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    found = _without_kept_axes(tracer.layers)
    if found[-1]["out"] != tracer.value[result]:
        raise NotImplementedError("the last layer is not the result")
    return found


class _Tracer:
    def __init__(self, names: Mapping[str, str], source: str, x: torch.Tensor) -> None:
        self.names, self.layers = names, list[Layer]()
        self.value: dict[Any, str] = {}  # node → the name of its value
        self.image = {"x": x.ndim == 4}
        self._source = source

    def add(self, node: Any) -> None:
        kind = node.target.__name__.split(".")[0] if hasattr(node.target, "__name__") else str(node.target)
        in_place = kind.endswith("_") and not kind.startswith("__")
        kind = kind.rstrip("_") if in_place else kind
        if in_place and any(user is not node and user > node for user in node.args[0].users):
            raise NotImplementedError(f"{kind}: the value is read after it was overwritten")
        if kind in SAME:
            self.value[node] = self._of(node.args[0])
        elif kind == "getitem":  # of unbind
            owner, index = node.args
            self._put(node, {"op": "select", "ins": [self._of(owner.args[0])], "axis": 0, "index": index}, image=False)
        elif kind in TABLE:
            layer = TABLE[kind](self, node)
            moved = layer["op"] in ("reshape", "permute", "linear", "attention", "layer_norm", "select")
            reduced = layer["op"] == "mean" and not layer["keep"]
            image = not moved and not reduced and self.image[layer["ins"][0]]
            self._put(node, layer, image)
        elif kind != "unbind":
            raise NotImplementedError(f"the operator {kind} is not in the neutral list")

    def _put(self, node: Any, layer: Layer, image: bool) -> None:
        name = f"v{len(self.layers)}"
        self.value[node], self.image[name] = name, image
        from_image = self.image[layer["ins"][0]]
        if from_image and layer["op"] in ("permute", "select", "linear", "attention", "layer_norm"):
            raise NotImplementedError(f"{layer['op']} of an image")
        shape = list(node.meta["val"].shape)
        self.layers.append({**layer, "out": name, "shape": shape, "image": image, "from_image": from_image})

    def _of(self, node: Any) -> str:
        if node is None:
            return ""
        if node.op == "placeholder":
            return "x" if node.name == self._source else self.names[node.name]
        return self.value[node]

    def ins(self, node: Any, count: int) -> list[str]:
        return [self._of(arg) for arg in node.args[:count]]


def _arg(node: Any, index: int, usual: Any) -> Any:
    return node.args[index] if len(node.args) > index else usual


def _pair(value: Any) -> list[int]:
    return [int(v) for v in value] * (2 if len(value) == 1 else 1)


def _conv(t: _Tracer, node: Any) -> Layer:
    strides, pads, dilation = (_pair(_arg(node, i, [usual])) for i, usual in ((3, 1), (4, 0), (5, 1)))
    if dilation != [1, 1]:
        raise NotImplementedError("a dilated convolution")
    x, w, b = [*t.ins(node, 3), ""][:3]
    return {"op": "conv", "ins": [x], "weight": w, "bias": b, "strides": strides, "pads": pads,
            "groups": _arg(node, 6, 1)}  # fmt: skip


def _norm(t: _Tracer, node: Any) -> Layer:
    x, scale, shift, mean, var = t.ins(node, 5)
    return {"op": "norm", "ins": [x], "scale": scale, "shift": shift, "mean": mean, "var": var, "eps": node.args[7]}


def _layer_norm(t: _Tracer, node: Any) -> Layer:
    if len(node.args[1]) != 1:
        raise NotImplementedError("a layer norm over several axes")
    return {"op": "layer_norm", "ins": t.ins(node, 1), "scale": t._of(node.args[2]), "shift": t._of(node.args[3]),
            "eps": _arg(node, 4, 1e-5)}  # fmt: skip


def _linear(t: _Tracer, node: Any) -> Layer:
    x, w, b = [*t.ins(node, 3), ""][:3]
    return {"op": "linear", "ins": [x], "weight": w, "bias": b}


def _pool(t: _Tracer, node: Any) -> Layer:
    kernel = _pair(node.args[1])
    strides, pads = _pair(_arg(node, 2, kernel) or kernel), _pair(_arg(node, 3, [0]))
    if _arg(node, 5, False) or _pair(_arg(node, 4, [1])) != [1, 1]:
        raise NotImplementedError("a pooling that is dilated or rounds up")
    return {"op": "max_pool", "ins": t.ins(node, 1), "kernel": kernel, "strides": strides, "pads": pads}


def _average(t: _Tracer, node: Any) -> Layer:
    if _pair(node.args[1]) != [1, 1]:
        raise NotImplementedError("an adaptive pooling to more than one pixel")
    return {"op": "mean", "ins": t.ins(node, 1), "axes": [2, 3], "keep": True}


def _mean(t: _Tracer, node: Any) -> Layer:
    rank, ins = node.args[0].meta["val"].ndim, t.ins(node, 1)
    axes = sorted(a % rank for a in node.args[1])
    if t.image[ins[0]] and axes != [2, 3]:
        raise NotImplementedError("a mean of an image over something other than its pixels")
    return {"op": "mean", "ins": ins, "axes": axes, "keep": _arg(node, 2, False)}


def _pad(t: _Tracer, node: Any) -> Layer:
    left, right, top, bottom = node.args[1]
    if _arg(node, 3, 0.0):
        raise NotImplementedError("padding with something other than zero")
    return {"op": "pad", "ins": t.ins(node, 1), "rows": [top, bottom], "columns": [left, right]}


def _add(t: _Tracer, node: Any) -> Layer:
    if node.kwargs or not all(isinstance(arg, torch.fx.Node) for arg in node.args):
        raise NotImplementedError("an addition that is more than a + b")
    return {"op": "add", "ins": t.ins(node, 2)}


def _reshape(t: _Tracer, node: Any) -> Layer:
    return {"op": "reshape", "ins": t.ins(node, 1), "to": list(node.meta["val"].shape)}


def _permute(t: _Tracer, node: Any) -> Layer:
    return {"op": "permute", "ins": t.ins(node, 1), "axes": list(node.args[1])}


def _transpose(t: _Tracer, node: Any) -> Layer:
    axes = list(range(node.meta["val"].ndim))
    a, b = node.args[1], node.args[2]
    axes[a], axes[b] = axes[b], axes[a]
    return {"op": "permute", "ins": t.ins(node, 1), "axes": axes}


def _attention(t: _Tracer, node: Any) -> Layer:
    if len(node.args) > 3 or node.kwargs:
        raise NotImplementedError("attention with a mask")
    return {"op": "attention", "ins": t.ins(node, 3)}


SAME = {"dropout", "contiguous"}  # in evaluation mode
TABLE: dict[str, Callable[[_Tracer, Any], Layer]] = {
    "conv2d": _conv, "batch_norm": _norm, "layer_norm": _layer_norm, "linear": _linear, "max_pool2d": _pool,
    "adaptive_avg_pool2d": _average, "mean": _mean, "pad": _pad, "add": _add,
    "scaled_dot_product_attention": _attention,
    "flatten": _reshape, "view": _reshape, "reshape": _reshape, "permute": _permute, "transpose": _transpose,
    "relu": lambda t, node: {"op": "relu", "ins": t.ins(node, 1)},
    "gelu": lambda t, node: {"op": "gelu", "ins": t.ins(node, 1)},
    "hardtanh": lambda t, node: {"op": "clip", "ins": t.ins(node, 1), "low": node.args[1], "high": node.args[2]},
}  # fmt: skip


def _without_kept_axes(layers: list[Layer]) -> list[Layer]:
    """A mean over pixels that keeps their axes, flattened right after, is a mean that does not keep them."""
    found: list[Layer] = []
    for layer in layers:
        before = found[-1] if found else {}
        kept = before.get("op") == "mean" and before["keep"] and layer["ins"] == [before["out"]]
        if kept and layer["op"] == "reshape" and layer["to"] == before["shape"][:2]:
            found[-1] = {**before, "keep": False, "image": False, "out": layer["out"], "shape": layer["shape"]}
        else:
            found.append(layer)
    return found


__all__ = ["Layer", "layers_of"]
