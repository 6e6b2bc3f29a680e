"""TensorFlow: the whole step is one tf.function."""

from __future__ import annotations

import os

import numpy as np

from .protocol import Array, Case, Options


def start(options: Options) -> str:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return str(tf.__version__)


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import tensorflow as tf

        from .tf_network import Network, data_of

        self.network = Network(case)
        self.x, self.y = (tf.constant(value) for value in data_of(case))

    def step(self) -> float:
        return float(self.network.train(self.x, self.y)["loss"])

    def forward(self) -> Array:
        return np.asarray(self.network.infer(self.x)["output"])


build = Run
