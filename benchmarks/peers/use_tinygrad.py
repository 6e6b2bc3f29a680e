"""tinygrad: the step is captured by TinyJit and runs as C kernels compiled with clang."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .protocol import Array, Case, Layer, Options, folded_norm, run_layers

WARM_STEPS = 3  # the first runs op by op, the second is captured, the third is what stays


def start(options: Options) -> str:
    os.environ["DEV"] = "CPU"
    os.environ["NUM_CPU_THREADS"] = str(options.threads)
    os.environ["TRAINING"] = "1"
    os.environ.setdefault("CACHEDB", os.path.abspath("build/step/cache/tinygrad.db"))  # compiled kernels
    os.makedirs(os.path.dirname(os.environ["CACHEDB"]), exist_ok=True)
    from importlib.metadata import version

    import tinygrad  # noqa: F401

    return version("tinygrad")


def prepare(case: Case, options: Options) -> None:
    start(options)
    run = Run(case, options)
    for _ in range(WARM_STEPS):
        run.step()


class Ops:
    def __init__(self, weights: dict[str, Any], constants: dict[str, Any]) -> None:
        self.w, self.constants = weights, constants

    def conv(self, layer: Layer, x: Any) -> Any:
        (top, left), bias = layer["pads"], self.w[layer["bias"]] if layer["bias"] else None
        return x.conv2d(self.w[layer["weight"]], bias, layer["groups"], tuple(layer["strides"]), 1,
                        (left, left, top, top))  # fmt: skip

    def norm(self, layer: Layer, x: Any) -> Any:
        factor, offset = self.constants[layer["out"]]
        scale = self.w[layer["scale"]]
        bias = self.w[layer["shift"]] - scale * offset
        return x * (scale * factor).reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)

    def layer_norm(self, layer: Layer, x: Any) -> Any:
        return x.layernorm(eps=layer["eps"]) * self.w[layer["scale"]] + self.w[layer["shift"]]

    def linear(self, layer: Layer, x: Any) -> Any:
        return x.linear(self.w[layer["weight"]].T, self.w[layer["bias"]] if layer["bias"] else None)

    def max_pool(self, layer: Layer, x: Any) -> Any:
        top, left = layer["pads"]
        return x.max_pool2d(tuple(layer["kernel"]), tuple(layer["strides"]), padding=(left, left, top, top))

    def mean(self, layer: Layer, x: Any) -> Any:
        return x.mean(tuple(layer["axes"]), keepdim=layer["keep"])

    def pad(self, layer: Layer, x: Any) -> Any:
        return x.pad((None, None, tuple(layer["rows"]), tuple(layer["columns"])))

    def relu(self, layer: Layer, x: Any) -> Any:
        return x.relu()

    def clip(self, layer: Layer, x: Any) -> Any:
        return x.clip(layer["low"], layer["high"])

    def gelu(self, layer: Layer, x: Any) -> Any:
        return x * 0.5 * (1 + (x * 0.5**0.5).erf())

    def add(self, layer: Layer, a: Any, b: Any) -> Any:
        return a + b

    def reshape(self, layer: Layer, x: Any) -> Any:
        return x.reshape(layer["to"])

    def permute(self, layer: Layer, x: Any) -> Any:
        return x.permute(layer["axes"])

    def select(self, layer: Layer, x: Any) -> Any:
        return x[layer["index"]]

    def attention(self, layer: Layer, q: Any, k: Any, v: Any) -> Any:
        return q.scaled_dot_product_attention(k, v)


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        from tinygrad import Tensor, TinyJit, nn

        layers, weights = case.layers(), case.weights()
        constants = {e["out"]: tuple(Tensor(v).realize() for v in folded_norm(e, weights))
                     for e in layers if e["op"] == "norm"}  # fmt: skip
        used = {e[key] for e in layers for key in ("weight", "bias", "scale", "shift") if e.get(key)}
        tensors = {k: Tensor(weights[k]).realize() for k in sorted(used)}
        for name, tensor in tensors.items():
            tensor.requires_grad = name in case.learns
        ops = Ops(tensors, constants)
        optimizer = nn.optim.SGD([tensors[k] for k in case.learns], lr=case.lr, momentum=case.momentum)
        x, y = case.data()
        self.x, self.y = Tensor(x).realize(), Tensor(y.astype(np.int32)).realize()
        self._output = lambda: run_layers(layers, self.x, ops)

        @TinyJit
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = run_layers(layers, x, ops).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optimizer.schedule_step())

        self._step = step

    def step(self) -> float:
        return float(self._step(self.x, self.y).item())

    def forward(self) -> Array:
        return self._output().numpy()


build = Run
