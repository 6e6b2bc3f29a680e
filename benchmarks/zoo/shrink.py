"""A configuration of transformers made small: every field that is known to be a size gets a small one, by its name.
Nested configurations are shrunk in the same way. No model has a rule of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WIDTH, HEADS, LAYERS, VOCABULARY, TOKENS, CLASSES = 32, 4, 2, 99, 12, 7
PIXELS, PATCH = 64, 8

# The first that fits the whole name decides.
SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size|vocab_size_per_layer_input|char_vocab_size|num_buckets_\w+", VOCABULARY),
    (r"(num_|n_)?(hidden_|encoder_|decoder_|attention_)?(layers|layer|blocks)|depth|n_layer|num_layers", LAYERS),
    (r"num_hidden_layers|encoder_layers|decoder_layers|num_decoder_layers|num_blocks|num_encoder_blocks", LAYERS),
    (r"\w*(num_key_value_heads|num_kv_heads|n_head_kv)", 2),
    (r"(num_|n_)?(\w+_)?(attention_heads|heads|head)", HEADS),
    (r"(\w+_)?head_dim|d_kv|qk_rope_head_dim|qk_nope_head_dim|v_head_dim|attention_head_size", WIDTH // HEADS),
    (r"rotary_dim", WIDTH // HEADS),
    (r"(q|kv)_lora_rank|(\w+_)?rank|latent_dim", 16),
    (r"moe_intermediate_size|(\w+_)?expert_(ffn_)?(hidden_|intermediate_)?size|shared_\w*intermediate_size", WIDTH),
    (r"intermediate_size\w*|ffn_dim|\w+_ffn_dim|d_ff|d_inner|n_inner|ffn_hidden_size|feed_forward_size|mlp_dim|"
     r"\w+_intermediate_size", 2 * WIDTH),
    (r"num_experts_per_tok|moe_topk|top_k_experts|moe_top_k|num_experts_per_token", 2),
    (r"(num|n)_(local_|routed_|total_)?experts|moe_num_experts", 4),
    (r"n_shared_experts|moe_num_shared_experts|n_group|topk_group|num_expert_groups|first_k_dense_replace", 1),
    (r"hidden_size|d_model|embed_dim|n_embd|dim|emb_dim|encoder_embed_dim|decoder_embed_dim|projection_dim|"
     r"\w*embedding_size|word_embed_proj_dim|conv_embedding_\w*dim|output_hidden_size|\w+_hidden_size|out_hidden_size|"
     r"d_embed|lru_width|model_dim|embedding_dim|classifier_proj_size|hidden_dim|\w+_embed_dim|entity_emb_size", WIDTH),
    (r"max_position_embeddings|n_positions|max_\w*positions|n_ctx|max_seq_len|seq_length|max_sequence_length", 64),
    (r"(local_|sliding_|attention_)?window(_size)?|local_attention", 8),
    (r"image_size|input_size", PIXELS),
    (r"patch_size", PATCH),
    (r"num_mel_bins|feature_size", 16),
    (r"max_length", 64),
    (r"num_conv_pos_embeddings", 16),
    (r"num_conv_pos_embedding_groups", 4),
    (r"mamba_d_state|state_size|ssm_state_size|mamba_d_ssm", 8),
    (r"mamba_n_heads|mamba_num_heads|linear_num_value_heads|linear_num_key_heads|n_mamba_heads", HEADS),
    (r"mamba_d_head|mamba_head_dim|linear_key_head_dim|linear_value_head_dim|mamba_headdim", WIDTH // 2),
    (r"(\w+_)?chunk_size", 8),
)  # fmt: skip
# Fields that would otherwise look like sizes, or whose default says something else.
KEPT = re.compile(r"chunk_size_feed_forward|num_heads_per_group|type_vocab_size|num_channels|num_feature_levels")
DEEP = re.compile(r"depths|num_blocks|layers|block_repeats|layer_depths|num_layers|depth|stage_num_blocks|n_layers")
WIDE = re.compile(
    r"(\w+_)?(hidden_sizes|embed_dims?|num_heads|num_attention_heads|hidden_dims?|stem_channels|conv_dim)"
)
TEXT = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 2,
        "cls_token_id": 1, "unk_token_id": 3, "mask_token_id": 4}  # fmt: skip


def shrunk(fields: Mapping[str, Any], level: int = 0) -> dict[str, Any]:
    """Fields of a configuration and their small values. Level 0 makes everything small; level 1 only depth and
    vocabulary, for models whose sizes depend on one another in other ways."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and "model_type" in value:
            found[name] = {"model_type": value["model_type"], **shrunk(value, level)}
        elif name in TEXT and "vocab_size" in fields:
            found[name] = TEXT[name]
        elif name == "vocab_size" and value is None:
            found[name] = VOCABULARY
        elif not KEPT.fullmatch(name):
            small = _small(name, value, level)
            if small != value:
                found[name] = small
    heads = next((n for n in ("num_attention_heads", "n_heads", "num_heads", "n_head") if n in fields), "")
    for name in ("num_key_value_heads", "num_kv_heads"):
        if name in found and fields[name] == fields.get(heads):  # as many as there are heads, not shared by several
            found[name] = found.get(heads, fields[name])
    if fields.get("is_encoder_decoder") and "vocab_size" in fields:
        found["decoder_start_token_id"] = TEXT["decoder_start_token_id"]
    if "use_cache" in fields:
        found["use_cache"] = False
    layers = next((found[n] for n in ("num_hidden_layers", "num_layers", "n_layer") if n in found), None)
    kinds = fields.get("layer_types")
    if isinstance(layers, int) and isinstance(kinds, list):
        found["layer_types"] = _one_of_each(kinds, layers)
    return found


def _small(name: str, value: Any, level: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | list | tuple):
        return value
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return value
        if DEEP.fullmatch(name):
            return [min(v, 2) for v in value]
        if level == 0 and WIDE.fullmatch(name):
            least = 1 if "head" in name else 16
            return [max(least, v * least // value[0]) for v in value]
        if level == 0 and name in ("image_size", "input_size"):
            return [PIXELS for _ in value]
        return value
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            if level and size not in (LAYERS, VOCABULARY):
                return value
            return min(value, size) if value > 0 else value
    return value


def _one_of_each(kinds: list[Any], count: int) -> list[Any]:
    """So that a short model still has every kind of layer, if there is room for it."""
    distinct = list(dict.fromkeys(kinds))
    return (distinct + kinds)[:count]


__all__ = ["CLASSES", "PIXELS", "TOKENS", "VOCABULARY", "shrunk"]
