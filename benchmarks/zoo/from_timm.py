"""Models of timm. A family is a file of timm.models; of each one model below the limit of parameters is drawn."""

from __future__ import annotations

from typing import Any

from .made import Made, fitting, images

CLASSES = 10
SIDES = (96, 128, 160, 192, 224, 240, 256, 288, 320, 384)
"""Pixels a side: the first that the model runs with."""


def families() -> dict[str, list[str]]:
    import timm
    from timm.models import _registry

    found: dict[str, list[str]] = {}
    for name in timm.list_models():
        found.setdefault(_registry._model_to_module[name], []).append(name)
    return found


def eligible(name: str) -> dict[str, Any] | None:
    """The first size that PyTorch runs it with: told to the model if it wants to know, else as it is."""
    for side in SIDES:
        for told in ({"img_size": side}, {}):
            facts = {"side": side, "given": told}
            if fitting(lambda facts=facts: make(name, facts)):  # type: ignore[misc]
                return facts
    return None


def make(name: str, facts: dict[str, Any]) -> Made:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, **facts["given"])
    return Made(model, images(facts["side"]))


__all__ = ["eligible", "families", "make"]
