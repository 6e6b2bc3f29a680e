"""The environment of the zoo: packages of models, without a torch of their own: it is the one of this project."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "zoo"
PYTHON = FOLDER / "venv" / "bin" / "python"
LONGEST_S = 1800

# Installed without what they depend on: that would be another torch, and torchvision.
MODELS = (
    "timm==1.0.31", "transformers==5.23.0", "segmentation_models_pytorch==0.6.0", "vit-pytorch==1.26.11",
    "x-transformers==2.31.10", "pytorchcv==0.0.74", "efficientnet_pytorch==0.7.1", "pretrainedmodels==0.7.4",
    "mlp-mixer-pytorch==0.3.1", "g-mlp-pytorch==0.1.5", "performer-pytorch==1.1.4", "linformer==0.2.3",
    "axial-attention==0.6.1", "lambda-networks==0.4.0", "nystrom-attention==0.0.14", "conformer==0.3.2",
    "local-attention==1.11.2", "bottleneck-transformer-pytorch==0.1.4", "halonet-pytorch==0.0.5",
    "perceiver-pytorch==0.11.0", "pytorch-tcn==1.2.3", "rtdl_revisiting_models==0.0.2", "segformer-pytorch==0.0.6",
    "unet==0.8.1", "res-mlp-pytorch==0.0.6", "linear-attention-transformer==0.19.1", "uformer-pytorch==0.0.8",
    "CoLT5-attention==0.11.2", "soft-moe-pytorch==0.1.9", "resnest==0.0.5", "reformer-pytorch==1.4.4",
    "memory-efficient-attention-pytorch==0.1.6", "block-recurrent-transformer-pytorch==0.4.4",
    # What those import and what has torch behind it in turn.
    "axial_positional_embedding==0.3.12", "product_key_memory==0.3.0", "hyper-connections==0.4.11",
    "rotary-embedding-torch==0.9.1", "memorizing_transformers_pytorch==0.4.1", "torch_einops_utils==0.2.0",
    "einx==0.4.3", "frozendict==2.5.1", "x_mlps_pytorch==0.6.9", "gateloop_transformer==0.2.5", "assoc_scan==0.0.6",
)  # fmt: skip
# What they import besides; none of it needs torch or numpy.
LIGHT = ("einops==0.8.2", "huggingface_hub==2.4.0", "safetensors==0.8.0", "tokenizers==0.23.3", "pyyaml", "regex",
         "filelock", "requests", "packaging", "tqdm", "munch", "six", "loguru", "pillow", "typer")  # fmt: skip


READY = FOLDER / "installed"


def is_made() -> bool:
    """Is it there, and the one that this file describes?"""
    return PYTHON.exists() and READY.exists() and READY.read_text() == _wanted()


def _wanted() -> str:
    return hashlib.sha256("\n".join([*MODELS, *LIGHT, *_beside()]).encode()).hexdigest()


def made(told: bool = True) -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    if is_made():
        return PYTHON
    FOLDER.mkdir(parents=True, exist_ok=True)
    if told:
        print(f"making {PYTHON.parents[1].relative_to(ROOT)} with {len(MODELS) + len(LIGHT)} packages ...", flush=True)
    venv = PYTHON.parents[1]
    _run([sys.executable, "-m", "venv", "--clear", str(venv)])
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *LIGHT])
    _run([*pip, "--no-deps", *MODELS])
    # Last, so that pip neither counts nor touches what is installed there.
    site = next((venv / "lib").glob("python*")) / "site-packages"
    (site / "beside.pth").write_text("".join(f"{path}\n" for path in _beside()))
    READY.write_text(_wanted())
    return PYTHON


def _beside() -> list[str]:
    """Where this interpreter has torch, numpy and what smidgen needs."""
    found = [importlib.util.find_spec(name) for name in ("torch", "numpy", "ortools")]
    places = [str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin]
    return list(dict.fromkeys(places))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise SystemExit(f"{' '.join(command[:6])} … failed: {said[-1] if said else done.returncode}")


__all__ = ["FOLDER", "PYTHON", "ROOT", "is_made", "made"]
