"""JAX: one jitted function of weights and momenta, which are donated. Images are NHWC."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from .protocol import Array, Case, Layer, Options, folded_norm, run_layers


def start(options: Options) -> str:
    os.environ["JAX_PLATFORMS"] = "cpu"
    # A cold start finds the compiler's cache warm.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.abspath("build/step/cache/jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if options.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax

    return str(jax.__version__)


def prepare(case: Case, options: Options) -> None:
    start(options)
    Run(case, options).step()


class Ops:
    """Layers with `weights` by name: traced where they learn, constants where they do not."""

    def __init__(self, weights: dict[str, Any], constants: dict[str, Array]) -> None:
        self.w, self.constants = weights, constants

    def conv(self, layer: Layer, x: Any) -> Any:
        from jax import lax

        (top, left), order = layer["pads"], ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(
            x, self.w[layer["weight"]], layer["strides"], ((top, top), (left, left)), dimension_numbers=order,
            feature_group_count=layer["groups"],
        )  # fmt: skip
        return y + self.w[layer["bias"]] if layer["bias"] else y

    def norm(self, layer: Layer, x: Any) -> Any:
        factor, offset = self.constants[layer["out"]]
        scale = self.w[layer["scale"]]
        return x * (scale * factor) + (self.w[layer["shift"]] - scale * offset)

    def layer_norm(self, layer: Layer, x: Any) -> Any:
        from jax import lax

        centred = x - x.mean(-1, keepdims=True)
        spread = (centred * centred).mean(-1, keepdims=True)
        return centred * lax.rsqrt(spread + layer["eps"]) * self.w[layer["scale"]] + self.w[layer["shift"]]

    def linear(self, layer: Layer, x: Any) -> Any:
        y = x @ self.w[layer["weight"]].T
        return y + self.w[layer["bias"]] if layer["bias"] else y

    def max_pool(self, layer: Layer, x: Any) -> Any:
        from jax import lax

        (h, w), (sh, sw), (top, left) = layer["kernel"], layer["strides"], layer["pads"]
        pads = ((0, 0), (top, top), (left, left), (0, 0))
        return lax.reduce_window(x, -np.inf, lax.max, (1, h, w, 1), (1, sh, sw, 1), pads)

    def mean(self, layer: Layer, x: Any) -> Any:
        return x.mean((1, 2) if layer["from_image"] else tuple(layer["axes"]), keepdims=layer["keep"])

    def pad(self, layer: Layer, x: Any) -> Any:
        import jax.numpy as jnp

        return jnp.pad(x, ((0, 0), layer["rows"], layer["columns"], (0, 0)))

    def relu(self, layer: Layer, x: Any) -> Any:
        import jax

        return jax.nn.relu(x)

    def clip(self, layer: Layer, x: Any) -> Any:
        import jax.numpy as jnp

        return jnp.clip(x, layer["low"], layer["high"])

    def gelu(self, layer: Layer, x: Any) -> Any:
        import jax

        return jax.nn.gelu(x, approximate=False)

    def add(self, layer: Layer, a: Any, b: Any) -> Any:
        return a + b

    def reshape(self, layer: Layer, x: Any) -> Any:
        return (x.transpose(0, 3, 1, 2) if layer["from_image"] else x).reshape(layer["to"])

    def permute(self, layer: Layer, x: Any) -> Any:
        return x.transpose(layer["axes"])

    def select(self, layer: Layer, x: Any) -> Any:
        return x[layer["index"]]

    def attention(self, layer: Layer, q: Any, k: Any, v: Any) -> Any:
        import jax

        scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]))
        return jax.nn.softmax(scores, -1) @ v


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import jax
        import jax.numpy as jnp

        layers, weights = case.layers(), case.weights()
        constants = {e["out"]: folded_norm(e, weights) for e in layers if e["op"] == "norm"}
        used = {e[key] for e in layers for key in ("weight", "bias", "scale", "shift") if e.get(key)}
        laid = {k: jnp.asarray(v.transpose(2, 3, 1, 0) if v.ndim == 4 else v) for k, v in weights.items() if k in used}
        learns = {k: laid[k] for k in case.learns}
        frozen = {k: v for k, v in laid.items() if k not in learns}
        x, y = case.data()
        self.x = jnp.asarray(np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x)
        self.y = jnp.asarray(y.astype(np.int32))

        def output(learned: Any, fixed: Any, x: Any) -> Any:
            return run_layers(layers, x, Ops({**learned, **fixed}, constants))

        def loss_of(learned: Any, fixed: Any, x: Any, y: Any) -> Any:
            logs = jax.nn.log_softmax(output(learned, fixed, x))
            return -jnp.take_along_axis(logs, y[:, None], 1).mean()

        def step(learned: Any, momenta: Any, fixed: Any, x: Any, y: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(learned, fixed, x, y)
            momenta = jax.tree.map(lambda m, g: case.momentum * m + g, momenta, gradients)
            return loss, jax.tree.map(lambda w, m: w - case.lr * m, learned, momenta), momenta

        self._step, self._output = jax.jit(step, donate_argnums=(0, 1)), jax.jit(output)
        self.learned, self.fixed = learns, frozen
        self.momenta = {k: jnp.zeros_like(v) for k, v in learns.items()}

    def step(self) -> float:
        import jax

        loss, self.learned, self.momenta = self._step(self.learned, self.momenta, self.fixed, self.x, self.y)
        jax.block_until_ready((self.learned, self.momenta))
        return float(loss)

    def forward(self) -> Array:
        return np.asarray(self._output(self.learned, self.fixed, self.x))


build = Run
