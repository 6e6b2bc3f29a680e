"""Models of other packages: those with a registry by name, those without by the signatures of their classes."""

from __future__ import annotations

import importlib
from typing import Any

from . import by_signature
from .by_signature import ScoresFirst
from .made import Made, fitting, floats, images, tokens

CLASSES, SIDES = 10, (96, 128, 160, 192, 224, 256, 299)
LENGTH, TOKENS, WIDTH = 16, 99, 32

QUOTAS = {"segmentation_models_pytorch": 9, "vit_pytorch": 15, "x_transformers": 7, "pytorchcv": 18,
          "pretrainedmodels": 3, "efficientnet_pytorch": 1, "small": 11}  # fmt: skip
SMALL = ("mlp_mixer_pytorch", "g_mlp_pytorch", "performer_pytorch", "linformer", "axial_attention", "lambda_networks",
         "nystrom_attention", "conformer", "local_attention", "bottleneck_transformer_pytorch", "halonet_pytorch",
         "perceiver_pytorch", "pytorch_tcn", "rtdl_revisiting_models", "segformer_pytorch", "unet", "res_mlp_pytorch",
         "linear_attention_transformer", "uformer_pytorch", "colt5_attention", "soft_moe_pytorch", "resnest.torch",
         "memory_efficient_attention_pytorch", "reformer_pytorch", "block_recurrent_transformer_pytorch")  # fmt: skip
# What the documentation of x-transformers offers for its layers, one at a time.
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {}, "rotary": {"rotary_pos_emb": True}, "alibi": {"alibi_pos_bias": True},
    "relative": {"rel_pos_bias": True}, "rms_glu": {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True},
    "talking": {"attn_pre_talking_heads": True}, "memories": {"attn_num_mem_kv": 4},
    "sandwich": {"sandwich_norm": True}, "macaron": {"macaron": True},
    "shifted": {"shift_tokens": 1}, "grouped": {"attn_kv_heads": 2},
    "cosine": {"attn_qk_norm": True, "attn_qk_norm_scale": 10}, "gated": {"gate_residual": True},
    "post_norm": {"pre_norm": False}, "relu_squared": {"ff_relu_squared": True},
    "value_gate": {"attn_gate_values": True}, "scale_norm": {"use_scalenorm": True},
    "residual_attention": {"residual_attn": True},
}  # fmt: skip


def families(package: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if package == "segmentation_models_pytorch":
        import segmentation_models_pytorch as smp

        encoders = sorted(smp.encoders.get_encoder_names())
        found = {arch: [f"{arch}/{e}" for e in encoders] for arch in sorted(smp.MODEL_ARCHITECTURES_MAPPING)}
    elif package == "pytorchcv":
        from pytorchcv import model_provider

        for name, make in model_provider._models.items():
            found.setdefault(make.__module__.rpartition(".")[2], []).append(name)
    elif package == "pretrainedmodels":
        import pretrainedmodels

        for name in pretrainedmodels.model_names:
            module = pretrainedmodels.__dict__[name].__module__.rpartition(".")[2]
            if module != "torchvision_models":
                found.setdefault(module, []).append(name)
    elif package == "efficientnet_pytorch":
        found = {"efficientnet": [f"efficientnet-b{k}" for k in range(8)]}
    elif package == "x_transformers":
        kinds = ("encoder", "decoder", "images", "numbers")
        found = {feature: [f"{kind}/{feature}" for kind in kinds] for feature in FEATURES}
    elif package == "vit_pytorch":
        found = by_signature.whole_models(package)
    else:
        found = by_signature.offered(tuple(p for p in SMALL if _imports(p)))
    return found


def _imports(package: str) -> bool:
    try:
        importlib.import_module(package)
    except Exception:  # it wants something that is not installed
        return False
    return True


def eligible(package: str, name: str) -> dict[str, Any] | None:
    if package in ("vit_pytorch", "small"):
        return by_signature.eligible(name)
    sides = SIDES if package not in ("x_transformers",) else (64,)
    for side in (32, *sides) if "cifar" in name or "svhn" in name else sides:
        if fitting(lambda side=side: make(package, name, {"side": side})):  # type: ignore[misc]
            return {"side": side}
    return None


def make(package: str, name: str, facts: dict[str, Any]) -> Made:
    if package in ("vit_pytorch", "small"):
        return by_signature.make(name, facts)
    side = facts["side"]
    if package == "segmentation_models_pytorch":
        import segmentation_models_pytorch as smp

        arch, _, encoder = name.partition("/")
        model = smp.create_model(arch, encoder_name=encoder, encoder_weights=None, classes=3)
        return Made(model, images(side), "cross_entropy")
    if package == "pytorchcv":
        from pytorchcv.model_provider import get_model

        return Made(get_model(name, pretrained=False), images(side))
    if package == "pretrainedmodels":
        import pretrainedmodels

        return Made(pretrainedmodels.__dict__[name](num_classes=1000, pretrained=None), images(side))
    if package == "efficientnet_pytorch":
        from efficientnet_pytorch import EfficientNet

        return Made(EfficientNet.from_name(name, num_classes=CLASSES), images(side))
    return _x_transformer(*name.split("/"))


def _x_transformer(kind: str, feature: str) -> Made:
    import x_transformers as x

    layers = {"dim": WIDTH, "depth": 2, "heads": 4, "attn_dim_head": 8, **FEATURES[feature]}
    if kind == "images":
        vit = x.ViTransformerWrapper(image_size=64, patch_size=8, num_classes=CLASSES, attn_layers=x.Encoder(**layers))
        return Made(vit, images(64))
    if kind == "numbers":
        rows = x.ContinuousTransformerWrapper(dim_in=8, dim_out=4, max_seq_len=LENGTH, attn_layers=x.Encoder(**layers))
        return Made(rows, floats(LENGTH, 8), "mse")
    made = x.Decoder(**layers) if kind == "decoder" else x.Encoder(**layers)
    model = x.TransformerWrapper(num_tokens=TOKENS, max_seq_len=LENGTH, attn_layers=made)
    return Made(ScoresFirst(model), tokens(LENGTH, TOKENS), "cross_entropy")


__all__ = ["QUOTAS", "eligible", "families", "make"]
