"""Who takes part: name, environment, what to install there. Python's own library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-peers"


@dataclass(frozen=True)
class Peer:
    name: str
    label: str  # for people
    module: str  # in this folder
    variant: str = ""  # which of the module's ways
    environment: str = ""  # a folder of ENVIRONMENTS; empty: the one that smidgen is developed in
    distribution: str = ""  # installed size: this, and all that it requires
    prepares_in: str = ""  # the environment that converts, if it is another one
    prepares: bool = False  # converts or compiles beforehand
    prepares_for_threads: bool = False  # anew for each number of threads
    images_only: bool = False
    notes: tuple[str, ...] = field(default=())


NO_MOMENTUM = "plain SGD: its optimizers are SGD without momentum and AdamW"
PEERS = [
    Peer("smidgen", "smidgen", "use_smidgen", distribution="smidgen"),
    Peer("torch", "PyTorch", "use_torch", distribution="torch"),
    Peer("torch_channels_last", "PyTorch channels_last", "use_torch", "channels_last", distribution="torch",
         images_only=True),
    Peer("torch_compile", "torch.compile", "use_torch", "compile", distribution="torch", prepares=True,
         prepares_for_threads=True),
    Peer("onnxruntime", "onnxruntime-training", "use_onnxruntime", environment="onnxruntime",
         distribution="onnxruntime-training", prepares=True, notes=(NO_MOMENTUM,)),
    Peer("tensorflow", "TensorFlow", "use_tensorflow", environment="tensorflow", distribution="tensorflow-cpu"),
    Peer("tflite", "TF Lite + select ops", "use_tflite", "select", "tflite", "tensorflow-cpu", prepares=True,
         notes=("TensorFlow 2.18: later ones have no interpreter with select ops",)),
    Peer("litert", "LiteRT", "use_tflite", "builtin", "litert", "ai-edge-litert", prepares_in="tensorflow",
         prepares=True, notes=("gradients are written by hand: it has none without TensorFlow's operators",)),
    Peer("jax", "JAX", "use_jax", environment="jax", distribution="jax", prepares=True, prepares_for_threads=True),
    Peer("tinygrad", "tinygrad", "use_tinygrad", environment="tinygrad", distribution="tinygrad", prepares=True,
         prepares_for_threads=True),
    Peer("mnn", "MNN", "use_mnn", environment="mnn", distribution="MNN"),
]  # fmt: skip
BY_NAME = {peer.name: peer for peer in PEERS}

INSTALLS = {  # environment → what pip is asked for
    "onnxruntime": ("onnxruntime-training==1.19.2", "onnx==1.17.0"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "tflite": ("tensorflow-cpu==2.18.1",),
    "litert": ("ai-edge-litert==2.3.0",),
    "jax": ("jax==0.10.2",),
    "tinygrad": ("tinygrad==0.14.0", "numpy"),
    "mnn": ("MNN==3.6.1", "numpy"),
}


def python_of(environment: str, own: str) -> str:
    """The interpreter of an environment; `own` is the one that this runs in."""
    return str(ENVIRONMENTS / environment / "bin" / "python") if environment else own


__all__ = ["BY_NAME", "ENVIRONMENTS", "INSTALLS", "PEERS", "ROOT", "Peer", "python_of"]
