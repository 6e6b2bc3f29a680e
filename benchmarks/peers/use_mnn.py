"""MNN: its Python interface for training. Operators are those of the compiled module: the Python wrappers around some
of them insert casts that stop the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .protocol import Array, Case, Layer, Options, folded_norm, one_hot, run_layers


def start(options: Options) -> str:
    import MNN
    import MNN.expr as expr
    import MNN.nn
    import MNN.optim

    expr.lazy_eval(True)
    expr.set_global_executor_config(0, 1, options.threads)  # CPU, high precision
    return str(MNN.version())


def variable(value: Array, learns: bool = False) -> Any:
    import MNN.expr as expr

    value = np.ascontiguousarray(value, np.float32)
    made = expr.const(value, list(value.shape), expr.NCHW)
    if learns:
        made.fix_as_trainable()
    return made


class Ops:
    def __init__(self, weights: dict[str, Any], constants: dict[str, Any]) -> None:
        import MNN.expr as expr

        self.w, self.constants, self.expr, self.raw = weights, constants, expr, expr._F

    def packed(self, x: Any) -> Any:
        return self.expr.convert(x, self.expr.NC4HW4)

    def plain(self, x: Any) -> Any:
        return self.expr.convert(x, self.expr.NCHW)

    def conv(self, layer: Layer, x: Any) -> Any:
        w = self.w[layer["weight"]]
        bias = self.w[layer["bias"]] if layer["bias"] else self.constants[layer["out"]]
        (sh, sw), (top, left) = layer["strides"], layer["pads"]
        return self.expr.conv2d(
            self.packed(x), w, bias, [sw, sh], [left, top], [1, 1], layer["groups"], self.expr.CAFFE
        )

    def norm(self, layer: Layer, x: Any) -> Any:
        factor, offset = self.constants[layer["out"]]
        scale = self.w[layer["scale"]]
        return x * (scale * factor) + (self.w[layer["shift"]] - scale * offset)

    def layer_norm(self, layer: Layer, x: Any) -> Any:
        centred = x - self.raw.reduce_mean(x, [-1], True)
        spread = self.raw.reduce_mean(centred * centred, [-1], True)
        scaled = centred * self.raw.rsqrt(spread + variable(np.array([layer["eps"]])))
        return scaled * self.w[layer["scale"]] + self.w[layer["shift"]]

    def linear(self, layer: Layer, x: Any) -> Any:
        rows = self.expr.reshape(x, [-1, list(x.shape)[-1]])
        y = self.raw.matmul(rows, self.w[layer["weight"]], False, True)
        y = y + self.w[layer["bias"]] if layer["bias"] else y
        return self.expr.reshape(y, layer["shape"])

    def max_pool(self, layer: Layer, x: Any) -> Any:
        """Padded here: its own padding rounds sizes up and gives wrong gradients."""
        (h, w), (sh, sw), (top, left) = layer["kernel"], layer["strides"], layer["pads"]
        x = self.padded(x, (top, top), (left, left), -1e30)
        return self.expr.max_pool(self.packed(x), [w, h], [sw, sh], self.expr.VALID, [0, 0])

    def mean(self, layer: Layer, x: Any) -> Any:
        x = self.plain(x) if layer["from_image"] else x
        return self.expr.reshape(self.raw.reduce_mean(x, layer["axes"], layer["keep"]), layer["shape"])

    def pad(self, layer: Layer, x: Any) -> Any:
        return self.padded(x, layer["rows"], layer["columns"], 0.0)

    def padded(self, x: Any, rows: Sequence[int], columns: Sequence[int], value: float) -> Any:
        """By concatenation: its operator for this has no gradient."""
        for axis, (before, after) in ((2, rows), (3, columns)):
            if before or after:
                shape = list(x.shape)
                sides = [variable(np.full((*shape[:axis], n, *shape[axis + 1 :]), value)) for n in (before, after)]
                parts = ([sides[0]] if before else []) + [self.plain(x)] + ([sides[1]] if after else [])
                x = self.raw.concat(parts, axis)
        return x

    def relu(self, layer: Layer, x: Any) -> Any:
        return self.expr.relu(x)

    def clip(self, layer: Layer, x: Any) -> Any:
        return self.expr.relu6(x, layer["low"], layer["high"])

    def gelu(self, layer: Layer, x: Any) -> Any:
        half, one = variable(np.array([0.5])), variable(np.array([1.0]))
        return x * half * (self.raw.erf(x * variable(np.array([math.sqrt(0.5)]))) + one)

    def add(self, layer: Layer, a: Any, b: Any) -> Any:
        return a + b

    def reshape(self, layer: Layer, x: Any) -> Any:
        return self.expr.reshape(self.plain(x) if layer["from_image"] else x, layer["to"])

    def permute(self, layer: Layer, x: Any) -> Any:
        return self.expr.transpose(x, layer["axes"])

    def select(self, layer: Layer, x: Any) -> Any:
        """By splitting: slices and gathers have no gradient."""
        part = self.raw.split(x, list(x.shape)[layer["axis"]], layer["axis"])[layer["index"]]
        return self.expr.reshape(part, layer["shape"])

    def attention(self, layer: Layer, q: Any, k: Any, v: Any) -> Any:
        scale = variable(np.array([1 / math.sqrt(layer["shape"][-1])]))
        scores = self.raw.matmul(q, k, False, True) * scale
        return self.raw.matmul(self.expr.softmax(scores, -1), v, False, False)


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import MNN.expr as expr
        import MNN.nn as nn
        import MNN.optim as optim

        layers, weights = case.layers(), case.weights()
        constants: dict[str, Any] = {}
        for layer in layers:
            if layer["op"] == "norm":
                constants[layer["out"]] = [variable(v.reshape(1, -1, 1, 1)) for v in folded_norm(layer, weights)]
                for key in ("scale", "shift"):
                    weights[layer[key]] = weights[layer[key]].reshape(1, -1, 1, 1)
            elif layer["op"] == "conv" and not layer["bias"]:
                constants[layer["out"]] = variable(np.zeros(len(weights[layer["weight"]])))
        used = {e[key] for e in layers for key in ("weight", "bias", "scale", "shift") if e.get(key)}

        class Network(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.values = {k: variable(weights[k], k in case.learns) for k in sorted(used)}
                for name in case.learns:  # attributes of the module are what the optimizer finds
                    setattr(self, "w_" + name.replace(".", "_"), self.values[name])

            def forward(self, x: Any) -> Any:
                return run_layers(layers, x, Ops(self.values, constants))

        self.expr, self.nn = expr, nn
        self.network = Network()
        self.network.train(False)
        self.optimizer = optim.SGD(self.network, case.lr, case.momentum, 0.0)
        x, y = case.data()
        self.x, self.y = variable(x), variable(one_hot(y, case.classes))

    def step(self) -> float:
        shares = self.expr.softmax(self.network.forward(self.x), -1)
        loss = self.nn.loss.cross_entropy(shares, self.y)
        value = float(np.array(loss.read()).reshape(-1)[0])
        if not self.optimizer.step(loss):
            raise RuntimeError("the optimizer did not find a gradient")
        return value

    def forward(self) -> Array:
        return np.array(self.network.forward(self.x).read())


build = Run
