"""TF Lite's on-device training: a converted signature `train`. With TensorFlow's operators for gradients (`select`), or
with built-in operators alone (`builtin`), which is all that the separate LiteRT package has."""

from __future__ import annotations

import os

import numpy as np

from .protocol import Array, Case, Options, one_hot


def start(options: Options) -> str:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if options.variant == "select":
        import tensorflow as tf

        return str(tf.__version__)
    import ai_edge_litert
    import ai_edge_litert.interpreter

    return str(ai_edge_litert.__version__)


def prepare(case: Case, options: Options) -> None:
    """Runs in the environment of TensorFlow."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tempfile

    import tensorflow as tf

    from .tf_network import Network

    builtin = options.variant == "builtin"
    network = Network(case, builtin)
    signatures = {name: getattr(network, name).get_concrete_function() for name in ("train", "infer")}
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(network, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        select = [] if builtin else [tf.lite.OpsSet.SELECT_TF_OPS]
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, *select]
        converter.experimental_enable_resource_variables = True
        converted = converter.convert()
    (case.folder / f"{options.variant}.tflite").write_bytes(converted)


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        if options.variant == "select":
            import tensorflow as tf

            module = tf.lite
        else:
            from ai_edge_litert import interpreter as module

        path = case.folder / f"{options.variant}.tflite"
        self.interpreter = module.Interpreter(model_path=str(path), num_threads=options.threads)
        self.train = self.interpreter.get_signature_runner("train")
        x, y = case.data()
        self.x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x
        self.y = one_hot(y, case.classes)

    def step(self) -> float:
        return float(self.train(x=self.x, y=self.y)["loss"])

    def forward(self) -> Array:
        infer = self.interpreter.get_signature_runner("infer")
        return np.array(infer(x=self.x)["output"])


build = Run
