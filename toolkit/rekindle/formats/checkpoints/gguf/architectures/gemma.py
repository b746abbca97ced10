"""Settings of Gemmas."""

from statistics import NormalDist
from typing import Any

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.attention import attention_bias, windows


def gemma2(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Gemma 2."""
    keys = metadata.keys
    caps = {
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
    }
    return windows(metadata, period=2, window=4096) | caps | _gemma_attention(metadata, layers_of_27b=46)


def gemma3(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Gemma 3."""
    keys = metadata.keys
    extra = {
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
    }
    return windows(metadata, period=6) | extra | _gemma_attention(metadata, layers_of_27b=62)


def gemma_embedding(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of an EmbeddingGemma."""
    return gemma3(metadata) | {"use_bidirectional_attention": True}


def gemma3n(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Gemma 3n."""
    keys, shapes = metadata.keys, metadata.file.shapes
    cutoffs = keys.get("activation_sparsity_scale")
    extra = {
        "intermediate_size": keys.get("feed_forward_length"),
        "activation_sparsity_pattern": None if cutoffs is None else [_sparsity(cutoff) for cutoff in cutoffs],
        "altup_num_inputs": keys.get("altup.num_inputs"),
        "altup_active_idx": keys.get("altup.active_idx"),
        "laurel_rank": shapes.get("blk.0.laurel_l.weight", (None,))[0],
        "hidden_size_per_layer_input": keys.get("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": shapes.get("per_layer_token_embd.weight", (None,))[0],
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers"),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
    }
    return windows(metadata, period=5, window=512) | extra | attention_bias(metadata)


def _sparsity(cutoff: float) -> float:
    """Return the share of a normal distribution below a bound: a decimal fraction in configs."""
    return round(NormalDist().cdf(cutoff), 6)


def gemma4(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Gemma 4."""
    keys, shapes = metadata.keys, metadata.file.shapes
    types = windows(metadata, period=6, window=512)
    kv_heads, widths = keys.get("attention.head_count_kv"), keys.get("feed_forward_length")
    full_dim, head_dim = metadata.head_dim, keys.size("attention.key_length_swa", metadata.head_dim)
    full = [i for i, kind in enumerate(types["layer_types"]) if kind == "full_attention"]
    keys_are_values = any(f"blk.{i}.attn_k.weight" in shapes and f"blk.{i}.attn_v.weight" not in shapes for i in full)
    for unused in ("attention.value_length", "attention.value_length_swa", "rope.dimension_count_swa"):
        keys.get(unused)  # the sizes of heads again
    features = {
        "hidden_size_per_layer_input": keys.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": shapes.get("per_layer_token_embd.weight", (1,))[0],
    }
    experts = {
        "enable_moe_block": "blk.0.ffn_gate_inp.weight" in shapes,
        "num_experts": keys.get("expert_count"),
        "top_k_experts": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
    }
    return (
        types
        | features
        | experts
        | {
            "intermediate_size": widths[0],
            "use_double_wide_mlp": widths[-1] == 2 * widths[0],
            "head_dim": head_dim,
            "num_key_value_heads": next((n for i, n in enumerate(kv_heads) if i not in full), kv_heads[0]),
            "per_layer_config": {str(i): {"head_dim": full_dim, "num_key_value_heads": kv_heads[i]} for i in full},
            "attention_k_eq_v": keys_are_values,
            "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
            "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
            "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
            # Tokens of an image see each other in the models without features of tokens; files do not say so.
            "use_bidirectional_attention": None if features["hidden_size_per_layer_input"] else "vision",
            "pad_token_id": metadata.file.metadata.get("tokenizer.ggml.padding_token_id"),
        }
        | attention_bias(metadata)
    )


def _gemma_attention(metadata: FileMetadata, layers_of_27b: int) -> dict[str, Any]:
    """Return the attention scale, which files do not contain. The 27B models differ from the others."""
    keys = metadata.keys
    is_27b = keys.size("block_count") == layers_of_27b
    scalar = keys.size("embedding_length") // keys.size("attention.head_count") if is_27b else metadata.head_dim
    return {"query_pre_attn_scalar": scalar} | attention_bias(metadata)
