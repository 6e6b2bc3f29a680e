"""Classes of packages that have no registry: required arguments are filled in by their names, and the input is the
first of a few usual ones that the model runs with."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import torch

from .made import Made, fitting, floats, images, tokens

SIDE, WIDTH, LENGTH, TOKENS, CLASSES, FEATURES = 64, 32, 16, 99, 7, 24
ARGUMENTS: dict[str, Any] = {
    "image_size": SIDE, "image_height": SIDE, "image_width": SIDE, "patch_size": 8, "image_patch_size": 8,
    "num_patches": (SIDE // 8) ** 2, "frames": 4, "num_frames": 4, "frame_patch_size": 2, "channels": 3,
    "in_channels": 3, "num_classes": CLASSES, "n_classes": CLASSES, "out_dim": CLASSES, "dim_out": CLASSES,
    "output_dim": CLASSES, "d_out": CLASSES, "dim": WIDTH, "dim_in": WIDTH, "emb_dim": WIDTH, "d_model": WIDTH,
    "depth": 2, "n_blocks": 2, "num_layers": 2, "heads": 4, "num_heads": 4, "dim_head": 8, "dim_key": 8, "dim_k": 8,
    "mlp_dim": 2 * WIDTH, "d_block": WIDTH, "num_tokens": TOKENS, "seq_len": LENGTH, "max_seq_len": LENGTH,
    "seq_length": LENGTH, "n": LENGTH, "k": 8, "window_size": 4, "block_size": 4, "halo_size": 1, "bucket_size": 4,
    "num_inputs": FEATURES, "d_in": FEATURES, "input_dim": FEATURES, "n_cont_features": FEATURES,
    "num_channels": (WIDTH, WIDTH), "dropout": 0.0, "input_channels": 3, "input_axis": 2, "num_freq_bands": 4,
    "max_freq": 10.0, "num_experts": 4, "slots_per_expert": 1, "expansion_factor": 2, "num_register_tokens": 4,
}  # fmt: skip
INPUTS: dict[str, Any] = {
    "image": images(SIDE),
    "tokens": tokens(LENGTH, TOKENS),
    "sequence": floats(LENGTH, WIDTH),
    "channels": floats(3, LENGTH),
    "map": floats(WIDTH, 16, 16),
    "video": floats(3, 4, SIDE, SIDE),
    "features": floats(FEATURES),
    "signals": floats(FEATURES, LENGTH),
    "last": floats(SIDE, SIDE, 3),
}


def classes_of(module: Any) -> list[str]:
    """Modules of torch that are defined there (or offered by a package) and can be filled in by names."""
    package, found = module.__name__.partition(".")[0], []
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and not name.startswith("_"):
            here = kind.__module__ == module.__name__ or hasattr(module, "__path__")
            if here and kind.__module__.partition(".")[0] == package and given(kind) is not None:
                found.append(f"{module.__name__}:{name}")
    return sorted(found)


def given(kind: type) -> dict[str, Any] | None:
    """Arguments by their names; nothing if one that is required is unknown."""
    found = {}
    for name, wanted in inspect.signature(kind).parameters.items():
        if wanted.kind in (wanted.VAR_POSITIONAL, wanted.VAR_KEYWORD):
            continue
        if name in ARGUMENTS and (wanted.default is wanted.empty or name == "dim_head"):
            found[name] = ARGUMENTS[name]
        elif wanted.default is wanted.empty:
            return None
    return found


def whole_models(package: str) -> dict[str, list[str]]:
    """Files of a package → their classes that end in class scores."""
    found: dict[str, list[str]] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        try:
            module = importlib.import_module(f"{package}.{info.name}")
        except Exception:  # it wants something that is not installed
            continue
        names = [n for n in classes_of(module) if "num_classes" in inspect.signature(_class(n)).parameters]
        if names:
            found[info.name] = names
    return found


def offered(packages: tuple[str, ...]) -> dict[str, list[str]]:
    """Packages → what they offer at their top."""
    return {p: names for p in packages if (names := classes_of(importlib.import_module(p)))}


def eligible(name: str) -> dict[str, Any] | None:
    for kind in INPUTS:
        if fitting(lambda kind=kind: make(name, {"input": kind})):  # type: ignore[misc]
            return {"input": kind}
    return None


def make(name: str, facts: dict[str, Any]) -> Made:
    kind = _class(name)
    arguments = given(kind)
    assert arguments is not None, name
    model = kind(**arguments)
    loss = "mse" if facts["input"] in ("sequence", "map") else ""
    if facts["input"] == "tokens":
        return Made(ScoresFirst(model), INPUTS["tokens"], "cross_entropy")
    return Made(model, INPUTS[facts["input"]], loss)


class ScoresFirst(torch.nn.Module):
    """Scores of each token behind the samples, where PyTorch's losses expect them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.model(x)
        return found.transpose(1, 2) if found.ndim == 3 else found


def _class(name: str) -> type:
    module, _, kind = name.partition(":")
    found: type = getattr(importlib.import_module(module), kind)
    return found


__all__ = ["ScoresFirst", "eligible", "make", "offered", "whole_models"]
