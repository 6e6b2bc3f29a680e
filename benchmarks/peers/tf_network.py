"""The network and its training step in TensorFlow, for itself and for conversion to TF Lite. Images are NHWC.

`builtin=True` writes gradients from operators that TF Lite has built in; otherwise TensorFlow's own are used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from .protocol import Array, Case, Layer, folded_norm, one_hot, run_layers


class Ops:
    def __init__(self, weights: dict[str, Any], constants: dict[str, Array]) -> None:
        self.w, self.constants = weights, constants

    def conv(self, layer: Layer, x: Any) -> Any:
        (top, left), w = layer["pads"], self.w[layer["weight"]]
        if top or left:
            x = tf.pad(x, [[0, 0], [top, top], [left, left], [0, 0]])
        y = self.depthwise(x, w, layer["strides"]) if layer["groups"] > 1 else self.dense(x, w, layer["strides"])
        return y + self.w[layer["bias"]] if layer["bias"] else y

    def dense(self, x: Any, w: Any, strides: list[int]) -> Any:
        return tf.nn.conv2d(x, w, strides, "VALID")

    def depthwise(self, x: Any, w: Any, strides: list[int]) -> Any:
        if strides[0] != strides[1]:
            raise NotImplementedError("a depthwise convolution with uneven strides")
        return tf.nn.depthwise_conv2d(x, w, [1, *strides, 1], "VALID")

    def norm(self, layer: Layer, x: Any) -> Any:
        factor, offset = self.constants[layer["out"]]
        scale = self.w[layer["scale"]]
        return x * (scale * factor) + (self.w[layer["shift"]] - scale * offset)

    def layer_norm(self, layer: Layer, x: Any) -> Any:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        spread = tf.reduce_mean(centred * centred, -1, keepdims=True)
        return centred * tf.math.rsqrt(spread + layer["eps"]) * self.w[layer["scale"]] + self.w[layer["shift"]]

    def linear(self, layer: Layer, x: Any) -> Any:
        rows = tf.reshape(x, [-1, layer_width(x)])
        y = tf.matmul(rows, self.w[layer["weight"]], transpose_b=True)
        y = y + self.w[layer["bias"]] if layer["bias"] else y
        return tf.reshape(y, layer["shape"])

    def max_pool(self, layer: Layer, x: Any) -> Any:
        (top, left), lowest = layer["pads"], -1e30
        if top or left:
            x = tf.pad(x, [[0, 0], [top, top], [left, left], [0, 0]], constant_values=lowest)
        return self.pool(x, layer["kernel"], layer["strides"])

    def pool(self, x: Any, kernel: list[int], strides: list[int]) -> Any:
        return tf.nn.max_pool2d(x, kernel, strides, "VALID")

    def mean(self, layer: Layer, x: Any) -> Any:
        return tf.reduce_mean(x, [1, 2] if layer["from_image"] else layer["axes"], keepdims=layer["keep"])

    def pad(self, layer: Layer, x: Any) -> Any:
        return tf.pad(x, [[0, 0], layer["rows"], layer["columns"], [0, 0]])

    def relu(self, layer: Layer, x: Any) -> Any:
        return tf.nn.relu(x)

    def clip(self, layer: Layer, x: Any) -> Any:
        if (layer["low"], layer["high"]) == (0, 6):
            return tf.nn.relu6(x)
        return tf.clip_by_value(x, layer["low"], layer["high"])

    def gelu(self, layer: Layer, x: Any) -> Any:
        return x * 0.5 * (1 + tf.math.erf(x * math.sqrt(0.5)))

    def add(self, layer: Layer, a: Any, b: Any) -> Any:
        return a + b

    def reshape(self, layer: Layer, x: Any) -> Any:
        return tf.reshape(tf.transpose(x, [0, 3, 1, 2]) if layer["from_image"] else x, layer["to"])

    def permute(self, layer: Layer, x: Any) -> Any:
        return tf.transpose(x, layer["axes"])

    def select(self, layer: Layer, x: Any) -> Any:
        return x[layer["index"]]

    def attention(self, layer: Layer, q: Any, k: Any, v: Any) -> Any:
        scores = tf.matmul(q, k, transpose_b=True) * (1 / math.sqrt(q.shape[-1]))
        return tf.matmul(tf.nn.softmax(scores), v)


def layer_width(x: Any) -> int:
    return int(x.shape[-1])


class BuiltinOps(Ops):
    """The same layers; the gradients are made of what TF Lite runs without TensorFlow's operators."""

    def dense(self, x: Any, w: Any, strides: list[int]) -> Any:
        @tf.custom_gradient
        def run(x: Any, w: Any) -> Any:
            def back(dy: Any) -> Any:
                sizes = tf.constant(x.shape.as_list())
                dx = tf.raw_ops.Conv2DBackpropInput(
                    input_sizes=sizes, filter=w, out_backprop=dy, strides=[1, *strides, 1], padding="VALID"
                )
                return dx, dense_dw(x, dy, w.shape.as_list(), strides)

            return tf.nn.conv2d(x, w, strides, "VALID"), back

        return run(x, tf.identity(w))

    def depthwise(self, x: Any, w: Any, strides: list[int]) -> Any:
        @tf.custom_gradient
        def run(x: Any, w: Any) -> Any:
            def back(dy: Any) -> Any:
                (kh, kw, channels, _), (_, height, width, _) = w.shape, x.shape
                taps = [tf.reduce_sum(window(x, dy, i, j, strides) * dy, [0, 1, 2]) for i, j in np.ndindex(kh, kw)]
                dw = tf.reshape(tf.stack(taps), [kh, kw, channels, 1])
                wide = spread(dy, strides)
                rows, columns = height - int(wide.shape[1]), width - int(wide.shape[2])
                wide = tf.pad(wide, [[0, 0], [kh - 1, rows], [kw - 1, columns], [0, 0]])
                return tf.nn.depthwise_conv2d(wide, tf.reverse(w, [0, 1]), [1, 1, 1, 1], "VALID"), dw

            return tf.nn.depthwise_conv2d(x, w, [1, *strides, 1], "VALID"), back

        return run(x, tf.identity(w))

    def pool(self, x: Any, kernel: list[int], strides: list[int]) -> Any:
        """Where pixels of a window are equal, each of them gets its gradient."""

        @tf.custom_gradient
        def run(x: Any) -> Any:
            y = tf.nn.max_pool2d(x, kernel, strides, "VALID")

            def back(dy: Any) -> Any:
                total = tf.zeros_like(x)
                for i, j in np.ndindex(*kernel):
                    part = spread(tf.where(window(x, dy, i, j, strides) >= y, dy, tf.zeros_like(dy)), strides)
                    rows, columns = x.shape[1] - part.shape[1] - i, x.shape[2] - part.shape[2] - j
                    total = total + tf.pad(part, [[0, 0], [i, rows], [j, columns], [0, 0]])
                return total

            return y, back

        return run(x)

    def relu(self, layer: Layer, x: Any) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            y = tf.nn.relu(x)
            return y, lambda dy: tf.where(y > 0, dy, tf.zeros_like(dy))

        return run(x)

    def clip(self, layer: Layer, x: Any) -> Any:
        low, high = layer["low"], layer["high"]

        @tf.custom_gradient
        def run(x: Any) -> Any:
            y = Ops.clip(self, layer, x)
            return y, lambda dy: tf.where(tf.logical_and(y > low, y < high), dy, tf.zeros_like(dy))

        return run(x)

    def gelu(self, layer: Layer, x: Any) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            share = 0.5 * (1 + erf(x * math.sqrt(0.5)))
            density = tf.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
            return x * share, lambda dy: dy * (share + x * density)

        return run(x)

    def select(self, layer: Layer, x: Any) -> Any:
        return tf.unstack(x)[layer["index"]]


def window(x: Any, dy: Any, i: int, j: int, strides: list[int]) -> Any:
    """What tap (i, j) of the kernel sees, in the shape of the output."""
    (sh, sw), (_, rows, columns, _) = strides, dy.shape
    return x[:, i : i + (rows - 1) * sh + 1 : sh, j : j + (columns - 1) * sw + 1 : sw, :]


def spread(d: Any, strides: list[int]) -> Any:
    """Zeros between rows and columns, as many as the strides skip."""
    (n, rows, columns, channels), (sh, sw) = d.shape, strides
    if (sh, sw) == (1, 1):
        return d
    d = tf.pad(tf.reshape(d, [n, rows, 1, columns * channels]), [[0, 0], [0, 0], [0, sh - 1], [0, 0]])
    d = tf.pad(tf.reshape(d, [n * rows * sh, columns, 1, channels]), [[0, 0], [0, 0], [0, sw - 1], [0, 0]])
    d = tf.reshape(d, [n, rows * sh, columns * sw, channels])
    return d[:, : (rows - 1) * sh + 1, : (columns - 1) * sw + 1, :]


def dense_dw(x: Any, dy: Any, shape: list[int], strides: list[int]) -> Any:
    (kh, kw, cin, cout), (sh, sw) = shape, strides
    if (kh, kw) == (1, 1):
        seen = window(x, dy, 0, 0, strides)
        flat = tf.matmul(tf.reshape(seen, [-1, cin]), tf.reshape(dy, [-1, cout]), transpose_a=True)
        return tf.reshape(flat, shape)
    # Samples and channels change places: a convolution of x with dy, which the strides dilate.
    rows, columns = (dy.shape[1] - 1) * sh + kh, (dy.shape[2] - 1) * sw + kw
    images, filters = tf.transpose(x[:, :rows, :columns, :], [3, 1, 2, 0]), tf.transpose(dy, [1, 2, 0, 3])
    return tf.transpose(tf.nn.conv2d(images, filters, 1, "VALID", dilations=[sh, sw]), [1, 2, 0, 3])


def erf(x: Any) -> Any:
    """Abramowitz and Stegun 7.1.26: within 1.5e-7, which is float32's own precision."""
    size = tf.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * size)
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    total = terms[0] * t
    for term in terms[1:]:
        total = (total + term) * t
    return tf.sign(x) * (1.0 - total * tf.exp(-size * size))


class Network(tf.Module):  # type: ignore[misc]
    """`train` is one step, `infer` the output; both for the case's batch."""

    def __init__(self, case: Case, builtin: bool = False) -> None:
        super().__init__()
        self.layers, weights = case.layers(), case.weights()
        self.case, self.ops = case, BuiltinOps if builtin else Ops
        self.builtin = builtin
        self.folded = {e["out"]: folded_norm(e, weights) for e in self.layers if e["op"] == "norm"}
        groups = {e["weight"]: e["groups"] for e in self.layers if e["op"] == "conv"}
        used = {e[key] for e in self.layers for key in ("weight", "bias", "scale", "shift") if e.get(key)}
        laid = {k: laid_out(weights[k], groups.get(k, 1)) for k in sorted(used)}
        self.learned = {k: tf.Variable(laid[k], name=k.replace(".", "_")) for k in case.learns}
        self.momenta = {k: tf.Variable(tf.zeros_like(v), trainable=False, name=k.replace(".", "_") + "_m")
                        for k, v in self.learned.items()}  # fmt: skip
        self.frozen = {k: v for k, v in laid.items() if k not in self.learned}
        x, y = data_of(case)
        self.train = tf.function(self._train, input_signature=[spec("x", x), spec("y", y)])
        self.infer = tf.function(self._infer, input_signature=[spec("x", x)])

    def _output(self, x: Any) -> Any:
        weights = {**self.learned, **{k: tf.constant(v) for k, v in self.frozen.items()}}
        return run_layers(self.layers, x, self.ops(weights, self.folded))

    def _train(self, x: Any, y: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            output = self._output(x)
            if self.builtin:
                loss = -tf.reduce_mean(tf.reduce_sum(tf.nn.log_softmax(output) * y, -1))
            else:
                loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=output))
        names = list(self.learned)
        gradients = tape.gradient(loss, [self.learned[k] for k in names])
        for name, gradient in zip(names, gradients, strict=True):
            momentum = self.case.momentum * self.momenta[name] + gradient
            self.momenta[name].assign(momentum)
            self.learned[name].assign_sub(self.case.lr * momentum)
        return {"loss": loss}

    def _infer(self, x: Any) -> dict[str, Any]:
        return {"output": self._output(x)}


def laid_out(value: Array, groups: int) -> Array:
    """Convolution weights in TensorFlow's order."""
    if value.ndim != 4:
        return value
    if groups > 1 and value.shape[1:2] != (1,):
        raise NotImplementedError("a grouped convolution that is not depthwise")
    return np.ascontiguousarray(value.transpose(2, 3, 0, 1) if groups > 1 else value.transpose(2, 3, 1, 0))


def spec(name: str, value: Array) -> Any:
    return tf.TensorSpec(value.shape, tf.float32, name=name)


def data_of(case: Case) -> tuple[Array, Array]:
    """Inputs in TensorFlow's order, labels as shares of the classes."""
    x, y = case.data()
    images = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x
    return images, one_hot(y, case.classes)
