"""onnxruntime-training: artifacts are generated once, the step is its on-device training API.

Its package imports PyTorch for other uses; what trains does not need it, so that import is passed by.
"""

from __future__ import annotations

import math
import os
import sys
import types
from typing import Any

import numpy as np

from .protocol import Array, Case, Layer, Options, folded_norm, run_layers


def start(options: Options) -> str:
    import onnxruntime

    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [os.path.join(os.path.dirname(onnxruntime.__file__), "training")]
    sys.modules["onnxruntime.training"] = package
    import onnxruntime.training.api

    return str(onnxruntime.__version__)


class Ops:
    """Appends ONNX nodes; a value is its name."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights, self.nodes = weights, list[Any]()
        self.stored: dict[str, Array] = {}

    def node(self, kind: str, *ins: str, **attributes: Any) -> str:
        from onnx import helper

        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(ins), [out], **attributes))
        return out

    def weight(self, name: str) -> str:
        self.stored[name] = self.weights[name]
        return name

    def constant(self, value: Array) -> str:
        name = f"c{len(self.stored)}"
        self.stored[name] = np.asarray(value)
        return name

    def conv(self, layer: Layer, x: str) -> str:
        names = [self.weight(layer[key]) for key in ("weight", "bias") if layer[key]]
        kernel = self.weights[layer["weight"]].shape[2:]
        return self.node("Conv", x, *names, kernel_shape=kernel, strides=layer["strides"], pads=layer["pads"] * 2,
                         group=layer["groups"])  # fmt: skip

    def norm(self, layer: Layer, x: str) -> str:
        """As a product and a sum: the gradient of its own node is for batch statistics."""
        factor, offset = (self.constant(v.reshape(-1, 1, 1)) for v in folded_norm(layer, self.weights))
        for name in (layer["scale"], layer["shift"]):
            self.weights[name] = self.weights[name].reshape(-1, 1, 1)
        scale, shift = self.weight(layer["scale"]), self.weight(layer["shift"])
        bias = self.node("Sub", shift, self.node("Mul", scale, offset))
        return self.node("Add", self.node("Mul", x, self.node("Mul", scale, factor)), bias)

    def layer_norm(self, layer: Layer, x: str) -> str:
        from onnx import helper

        names = [self.weight(layer[key]) for key in ("scale", "shift")]
        outs = [f"t{len(self.nodes)}{end}" for end in ("", "m", "s")]  # training wants mean and spread, too
        self.nodes.append(helper.make_node("LayerNormalization", [x, *names], outs, axis=-1, epsilon=layer["eps"]))
        return outs[0]

    def linear(self, layer: Layer, x: str) -> str:
        if len(layer["shape"]) == 2:
            names = [self.weight(layer[key]) for key in ("weight", "bias") if layer[key]]
            return self.node("Gemm", x, *names, transB=1)
        self.weights[layer["weight"]] = np.ascontiguousarray(self.weights[layer["weight"]].T)
        y = self.node("MatMul", x, self.weight(layer["weight"]))
        return self.node("Add", y, self.weight(layer["bias"])) if layer["bias"] else y

    def max_pool(self, layer: Layer, x: str) -> str:
        return self.node("MaxPool", x, kernel_shape=layer["kernel"], strides=layer["strides"], pads=layer["pads"] * 2)

    def mean(self, layer: Layer, x: str) -> str:
        if layer["from_image"]:
            y = self.node("GlobalAveragePool", x)
            return y if layer["keep"] else self.node("Flatten", y)
        return self.node("ReduceMean", x, axes=layer["axes"], keepdims=int(layer["keep"]))

    def pad(self, layer: Layer, x: str) -> str:
        (top, bottom), (left, right) = layer["rows"], layer["columns"]
        return self.node("Pad", x, self.constant(np.array([0, 0, top, left, 0, 0, bottom, right])))

    def relu(self, layer: Layer, x: str) -> str:
        return self.node("Relu", x)

    def clip(self, layer: Layer, x: str) -> str:
        return self.node("Clip", x, *[self.constant(np.float32(layer[key])) for key in ("low", "high")])

    def gelu(self, layer: Layer, x: str) -> str:
        erf = self.node("Erf", self.node("Div", x, self.constant(np.float32(math.sqrt(2)))))
        y = self.node("Mul", x, self.node("Add", erf, self.constant(np.float32(1))))
        return self.node("Mul", y, self.constant(np.float32(0.5)))

    def add(self, layer: Layer, a: str, b: str) -> str:
        return self.node("Add", a, b)

    def reshape(self, layer: Layer, x: str) -> str:
        return self.node("Reshape", x, self.constant(np.array(layer["to"])))

    def permute(self, layer: Layer, x: str) -> str:
        return self.node("Transpose", x, perm=layer["axes"])

    def select(self, layer: Layer, x: str) -> str:
        return self.node("Gather", x, self.constant(np.array(layer["index"])), axis=layer["axis"])

    def attention(self, layer: Layer, q: str, k: str, v: str) -> str:
        scale = self.constant(np.float32(1 / math.sqrt(layer["shape"][-1])))
        keys = self.node("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.node("Mul", self.node("MatMul", q, keys), scale)
        return self.node("MatMul", self.node("Softmax", scores, axis=-1), v)


def prepare(case: Case, options: Options) -> None:
    start(options)
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.training import artifacts

    ops, layers = Ops(case.weights()), case.layers()
    result = run_layers(layers, "x", ops)
    ops.nodes[-1].output[0] = "output"
    assert result == f"t{len(ops.nodes) - 1}"
    x, _ = case.data()
    graph = helper.make_graph(
        ops.nodes, case.net,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, layers[-1]["shape"])],
        [numpy_helper.from_array(np.array(v, order="C"), name) for name, v in ops.stored.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = case.folder / "onnxruntime"
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        model, requires_grad=list(case.learns), frozen_params=[name for name in ops.stored if name not in case.learns],
        loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.SGD, artifact_directory=str(folder),
        additional_output_names=["output"],
    )  # fmt: skip


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import onnxruntime
        from onnxruntime.training.api import CheckpointState, Module, Optimizer

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = options.threads, 1
        folder = case.folder / "onnxruntime"
        self.state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        self.module = Module(
            str(folder / "training_model.onnx"), self.state, str(folder / "eval_model.onnx"), session_options=settings
        )
        self.optimizer = Optimizer(str(folder / "optimizer_model.onnx"), self.module)
        self.optimizer.set_learning_rate(case.lr)
        self.x, self.y = case.data()
        self.module.train()

    def step(self) -> float:
        loss = self.module(self.x, self.y)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return float(loss[0] if isinstance(loss, (tuple, list)) else loss)

    def forward(self) -> Array:
        self.module.eval()
        _, output = self.module(self.x, self.y)
        self.module.train()
        return np.asarray(output)


build = Run
