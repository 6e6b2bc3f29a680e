"""A classifier of prototypes (Snell et al. 2017) with cosine similarity: of each class the mean of its features. It is
an ordinary module, whose second input holds the prototypes: they are constants of a step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..ir import Array

SCALE = 10.0
ABSENT = 1e4  # that the score of a class without a prototype is below all others


class Prototypical(nn.Module):  # type: ignore[misc]
    """(images, prototypes [N, classes, features]) → scores of the classes, and features of length 1. Prototypes have
    length 1; those of classes that are not there are 0."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.scale = backbone, nn.Parameter(torch.tensor([SCALE]))

    def forward(self, x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        found = self.backbone(x).flatten(1)
        features = found / (found * found).sum(1, keepdim=True).add(1e-12).sqrt()
        near = (prototypes * features.unsqueeze(1)).sum(2)
        there = (prototypes * prototypes).sum(2)
        return near * self.scale + (there - 1) * ABSENT, features


def prototype_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output[0], target)


def prototypes(features: Array, labels: Array, classes: int) -> Array:
    """[classes, features], each of length 1; 0 where no sample is."""
    found = np.zeros((classes, features.shape[1]), np.float32)
    for c in np.unique(labels):
        mean = features[labels == c].mean(axis=0, dtype=np.float64)
        found[int(c)] = mean / max(np.sqrt((mean * mean).sum()), 1e-12)
    return found


__all__ = ["Prototypical", "prototype_loss", "prototypes"]
