"""Models of transformers: every model type that has a class for one of the tasks below, in a small configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .made import Made, Sizes, classes, fitting
from .shrink import CLASSES, PIXELS, TOKENS, VOCABULARY, shrunk

# The first task that a model type has a class for is the one that it is drawn with.
TASKS = ("SequenceClassification", "ImageClassification", "AudioClassification", "CausalLM", "Model")
QUOTAS = {"SequenceClassification": 38, "ImageClassification": 18, "AudioClassification": 8, "CausalLM": 12, "Model": 8}
SAMPLES = 2000  # of sound
# Made of a model of another package, or of two models that have to be named.
COMPOSITE = ("timm_wrapper", "timm_backbone", "encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder",
             "vision-text-dual-encoder", "rag")  # fmt: skip


def families() -> dict[str, dict[str, list[str]]]:
    """Task → family (the folder in transformers.models) → model types."""
    from transformers.models.auto import configuration_auto

    found: dict[str, dict[str, list[str]]] = {task: {} for task in TASKS}
    seen: set[str] = set()
    for task in TASKS:
        for kind in sorted(_mapping(task)):
            family = configuration_auto.model_type_to_module_name(kind)
            if kind not in COMPOSITE and family not in seen:
                found[task].setdefault(family, []).append(kind)
        seen |= set(found[task])
    return found


def _mapping(task: str) -> Any:
    from transformers.models.auto import modeling_auto

    name = {"SequenceClassification": "SEQUENCE_CLASSIFICATION", "ImageClassification": "IMAGE_CLASSIFICATION",
            "AudioClassification": "AUDIO_CLASSIFICATION", "CausalLM": "CAUSAL_LM"}.get(task, "")  # fmt: skip
    return getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES" if name else "MODEL_MAPPING_NAMES")


def eligible(kind: str, task: str) -> dict[str, Any] | None:
    """How the model is made, if PyTorch runs it forward with its main input alone; else nothing."""
    import transformers

    fields = transformers.CONFIG_MAPPING[kind]().to_dict()
    for level in (0, 1):
        sizes = shrunk(fields, level)
        for given in _inputs(kind, task, sizes):
            facts = {"config": sizes, "task": task, **given}
            if fitting(lambda facts=facts: make(kind, facts)):  # type: ignore[misc]
                return facts
    return None


def _inputs(kind: str, task: str, sizes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    main = _class(kind, task).main_input_name
    config = _config(kind, sizes)
    if main == "input_ids":
        yield {"input": main, "shape": [TOKENS]}
    elif main == "pixel_values":
        size = getattr(config, "image_size", None) or PIXELS
        for pixels in dict.fromkeys([size if isinstance(size, int) else size[0], PIXELS, 224]):
            yield {"input": main, "shape": [getattr(config, "num_channels", 3), pixels, pixels]}
    elif main == "input_values":
        yield {"input": main, "shape": [SAMPLES]}
        if hasattr(config, "num_mel_bins"):
            yield {"input": main, "shape": [getattr(config, "max_length", 64), config.num_mel_bins]}
    elif main == "input_features":
        bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_projection_input_dim", 16)
        long = 2 * getattr(config, "max_source_positions", 32)
        for shape in ([bins, long], [64, bins], [64, getattr(config, "feature_projection_input_dim", 160)]):
            yield {"input": main, "shape": shape}


def _class(kind: str, task: str) -> Any:
    import transformers

    name = _mapping(task)[kind]
    return getattr(transformers, name if isinstance(name, str) else name[0])


def _config(kind: str, sizes: dict[str, Any]) -> Any:
    import transformers

    labels = {"num_labels": CLASSES}
    return transformers.CONFIG_MAPPING[kind](**sizes, **labels)


def make(kind: str, facts: dict[str, Any]) -> Made:
    model = _class(kind, facts["task"])._from_config(_config(kind, facts["config"]))
    return Made(_OneTensor(model, facts["input"], facts["task"]), lambda rng, n: [_example(facts, rng, n)])


def _example(facts: dict[str, Any], rng: np.random.Generator, samples: int) -> Any:
    shape: Sizes = (samples, *facts["shape"])
    if facts["input"] != "input_ids":
        return rng.standard_normal(shape).astype(np.float32)
    least = min(VOCABULARY, facts["config"].get("vocab_size", VOCABULARY))
    ids = classes(rng, shape, 5, least)
    ids[:, -1] = facts["config"].get("eos_token_id") or 2  # some models classify by the last token of a text
    return ids


class _OneTensor(torch.nn.Module):
    """What the model says of its input: class scores if it has them, else its last hidden state."""

    def __init__(self, model: torch.nn.Module, name: str, task: str) -> None:
        super().__init__()
        self.model, self.name, self.task = model, name, task

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.model(**{self.name: x})
        if self.task == "Model":
            for key in ("last_hidden_state", "pooler_output", "logits"):
                if found.get(key) is not None:
                    return found[key]
            return next(v for v in found.values() if isinstance(v, torch.Tensor) and v.is_floating_point())
        return found.logits.transpose(1, 2) if self.task == "CausalLM" else found.logits


__all__ = ["QUOTAS", "TASKS", "eligible", "families", "make"]
