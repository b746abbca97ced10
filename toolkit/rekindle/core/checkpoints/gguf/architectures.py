"""Supported GGUF architectures and their special settings."""

from collections.abc import Mapping
from typing import Any, Final

from rekindle.core.checkpoints.gguf.architecture import Architecture, FileMetadata
from rekindle.core.errors import UnsupportedModel

_SOFTMAX, _SIGMOID = 1, 2
"""Values of "expert_gating_func"."""


def _biases(metadata: FileMetadata) -> dict[str, Any]:
    return {"attention_bias": metadata.attention_bias, "mlp_bias": metadata.has("ffn_up.bias")}


def _attention_bias(metadata: FileMetadata) -> dict[str, Any]:
    return {"attention_bias": metadata.attention_bias}


def _window(metadata: FileMetadata) -> dict[str, Any]:
    """Return the sliding window for all layers, if there is one."""
    return {"sliding_window": metadata.keys.get("attention.sliding_window") or None}


def _windows(metadata: FileMetadata, period: int, window: int = 0) -> dict[str, Any]:
    """Return the sliding window and the types of the layers.

    Args:
        metadata: the file's metadata.
        period: if the file has no pattern, every `period`-th layer uses full attention.
        window: default window in tokens.
    """
    keys = metadata.keys
    window = keys.get("attention.sliding_window", window)
    pattern = keys.get("attention.sliding_window_pattern", period)
    if not isinstance(pattern, list):
        pattern = [not pattern or i % pattern < pattern - 1 for i in range(keys.size("block_count"))]
    types = ["sliding_attention" if has_window else "full_attention" for has_window in pattern]
    return {"sliding_window": window, "layer_types": types} if window else {"sliding_window": None}


def _llama(metadata: FileMetadata) -> dict[str, Any]:
    """Distinguish Mixtral, Mistral and Llama, because llama.cpp uses one architecture name for all of them."""
    if metadata.keys.get("expert_count"):
        metadata.keys.refuse("expert_weights_norm", True)
        return {"model_type": "mixtral"} | _experts(metadata) | _window(metadata)
    if metadata.keys.get("attention.sliding_window"):
        return {"model_type": "mistral"} | _window(metadata)
    return _biases(metadata)


def _experts(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    return {"num_local_experts": keys.get("expert_count"), "num_experts_per_tok": keys.get("expert_used_count")}


def _qwen_moe(metadata: FileMetadata, is_normalised: bool) -> dict[str, Any]:
    width = metadata.file.shapes.get("blk.0.ffn_down_exps.weight", (None,))[-1]
    return _experts(metadata) | {
        "moe_intermediate_size": metadata.keys.get("expert_feed_forward_length", width),
        "norm_topk_prob": metadata.keys.flag("expert_weights_norm", is_normalised),
    }


def _qwen2_moe(metadata: FileMetadata) -> dict[str, Any]:
    width = metadata.file.shapes.get("blk.0.ffn_down_shexp.weight", (None,))[-1]
    shared = metadata.keys.get("expert_shared_feed_forward_length", width)
    extra = {"shared_expert_intermediate_size": shared, "qkv_bias": metadata.attention_bias}
    return _qwen_moe(metadata, is_normalised=False) | extra


def _sections(metadata: FileMetadata) -> dict[str, Any]:
    """Read the keys for images. Text has the same position in each section of a rope, and no features of images."""
    metadata.keys.get("rope.dimension_sections")
    metadata.keys.get("n_deepstack_layers")
    return {}


def _gemma2(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    caps = {
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
    }
    return _windows(metadata, period=2, window=4096) | caps | _gemma_attention(metadata, layers_of_27b=46)


def _gemma3(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    extra = {
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
    }
    return _windows(metadata, period=6) | extra | _gemma_attention(metadata, layers_of_27b=62)


def _gemma4(metadata: FileMetadata) -> dict[str, Any]:
    keys, shapes = metadata.keys, metadata.file.shapes
    types = _windows(metadata, period=6, window=512)
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
        }
        | _attention_bias(metadata)
    )


def _gemma_attention(metadata: FileMetadata, layers_of_27b: int) -> dict[str, Any]:
    """Return the attention scale, which files do not contain. The 27B models differ from the others."""
    keys = metadata.keys
    is_27b = keys.size("block_count") == layers_of_27b
    scalar = keys.size("embedding_length") // keys.size("attention.head_count") if is_27b else metadata.head_dim
    return {"query_pre_attn_scalar": scalar} | _attention_bias(metadata)


def _olmo(metadata: FileMetadata) -> dict[str, Any]:
    """Distinguish OLMo 3 from OLMo 2 by its sliding window."""
    if metadata.keys.get("attention.sliding_window"):
        return {"model_type": "olmo3"} | _windows(metadata, period=4) | _attention_bias(metadata)
    return _attention_bias(metadata)


def _granite(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    if not keys.flag("rope.scaling.finetuned", True):
        raise UnsupportedModel(f"{keys.source}: a Granite without positions (rope.scaling.finetuned) is not supported")
    return _biases(metadata) | {
        "attention_multiplier": keys.number("attention.scale", 0.0) or metadata.head_dim**-0.5,
        "embedding_multiplier": keys.number("embedding_scale", 1.0) or 1.0,
        "residual_multiplier": keys.number("residual_scale", 1.0) or 1.0,
        "logits_scaling": keys.number("logit_scale", 1.0) or 1.0,
    }


def _cohere(metadata: FileMetadata) -> dict[str, Any]:
    extra = {"logit_scale": metadata.keys.number("logit_scale"), "use_qk_norm": metadata.has("attn_q_norm.weight")}
    return _attention_bias(metadata) | extra


def _cohere2(metadata: FileMetadata) -> dict[str, Any]:
    extra = {"logit_scale": metadata.keys.number("logit_scale")}
    return _attention_bias(metadata) | _windows(metadata, period=4) | extra


def _stablelm(metadata: FileMetadata) -> dict[str, Any]:
    return {
        "use_parallel_residual": not metadata.has("ffn_norm.weight"),
        "use_qkv_bias": metadata.attention_bias,
        "qk_layernorm": metadata.has("attn_q_norm.weight"),
    }


def _gpt_oss(metadata: FileMetadata) -> dict[str, Any]:
    return _experts(metadata) | _windows(metadata, period=2) | _attention_bias(metadata)


def _deepseek(metadata: FileMetadata) -> dict[str, Any]:
    """Distinguish DeepSeek-V3 from V2 by the gating function, or by the score correction in files without it."""
    keys = metadata.keys
    has_correction = any(name.endswith(".exp_probs_b.bias") for name in metadata.file.shapes)
    scores = keys.get("expert_gating_func") or (_SIGMOID if has_correction else _SOFTMAX)
    keys.refuse("expert_gating_func", 0, _SOFTMAX, _SIGMOID)
    groups = keys.get("expert_group_count") or 1
    settings = _latent(metadata) | {
        "n_routed_experts": keys.get("expert_count"),
        "n_shared_experts": keys.get("expert_shared_count"),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "n_group": groups,
        "topk_group": keys.get("expert_group_used_count") or 1,
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        "routed_scaling_factor": keys.number("expert_weights_scale", 0.0) or 1.0,
    }
    if scores == _SIGMOID:
        return settings | {"model_type": "deepseek_v3"}
    return settings | {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"}


def _routed(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of experts chosen by sigmoids with a correction, after dense layers."""
    keys = metadata.keys
    keys.refuse("expert_gating_func", _SIGMOID)
    return {
        "n_routed_experts": keys.get("expert_count"),
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        "routed_scaling_factor": keys.number("expert_weights_scale", 0.0) or 1.0,
    }


def _glm4_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a GLM-4.5. Its layers of multi-token prediction are blocks after the others."""
    keys = metadata.keys
    return _routed(metadata) | {
        "num_hidden_layers": keys.size("block_count") - keys.get("nextn_predict_layers", 0),
        "attention_bias": metadata.attention_bias,
        "use_qk_norm": metadata.has("attn_q_norm.weight"),
    }


def _olmo1(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of an OLMo 1. The epsilon of its norms is no setting."""
    metadata.keys.refuse("attention.layer_norm_epsilon", 1e-5)
    clip = metadata.keys.number("attention.clamp_kqv", 0.0) or None
    return _attention_bias(metadata) | {"clip_qkv": clip, "layer_norm_eps": None}


def _minimax_m2(metadata: FileMetadata) -> dict[str, Any]:
    metadata.keys.refuse("expert_gating_func", _SIGMOID)
    return _experts(metadata)


def _ernie_moe(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    return {
        "use_bias": metadata.attention_bias,
        "moe_k": keys.get("expert_used_count"),
        "moe_num_experts": keys.get("expert_count"),
        "moe_num_shared_experts": keys.get("expert_shared_count", 0),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "moe_layer_start_index": keys.get("leading_dense_block_count", 0),
        "moe_layer_interval": keys.get("interleave_moe_layer_step", 1),
    }


def _gpt_neox(metadata: FileMetadata) -> dict[str, Any]:
    parallel = metadata.keys.flag("use_parallel_residual", True)
    return {"use_parallel_residual": parallel, "attention_bias": metadata.attention_bias}


def _latent(metadata: FileMetadata) -> dict[str, Any]:
    """Return the sizes of latent attention. Older files store the sizes of whole heads under the general keys."""
    keys = metadata.keys
    whole_head = keys.get("attention.key_length"), keys.get("attention.value_length")
    rotary_size = keys.size("rope.dimension_count")
    key = keys.size("attention.key_length_mla", whole_head[0])
    if key <= rotary_size:
        raise keys.wrong(
            "attention.key_length_mla", f"must be more than {rotary_size}, the size of the rotary part", key
        )
    return {
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "qk_nope_head_dim": key - rotary_size,
        "qk_rope_head_dim": rotary_size,
        "v_head_dim": keys.size("attention.value_length_mla", whole_head[1]),
    }


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    architecture.name: architecture
    for architecture in (
        Architecture("llama", "llama", _llama, permuted=True),
        Architecture("mistral3", "ministral3", permuted=True),
        Architecture("qwen2", "qwen2"),
        Architecture("qwen2vl", "qwen2", _sections),
        Architecture("qwen2moe", "qwen2_moe", _qwen2_moe),
        Architecture("qwen3", "qwen3", _attention_bias),
        Architecture("qwen3vl", "qwen3", lambda metadata: _sections(metadata) | _attention_bias(metadata)),
        Architecture(
            "qwen3moe",
            "qwen3_moe",
            lambda metadata: _qwen_moe(metadata, is_normalised=True) | _attention_bias(metadata),
        ),
        Architecture(
            "qwen3vlmoe",
            "qwen3_moe",
            lambda metadata: _sections(metadata) | _qwen_moe(metadata, is_normalised=True) | _attention_bias(metadata),
        ),
        Architecture("gemma", "gemma", _attention_bias, shifted=True),
        Architecture("gemma2", "gemma2", _gemma2, shifted=True),
        Architecture("gemma3", "gemma3_text", _gemma3, shifted=True),
        Architecture(
            "gemma4",
            "gemma4_text",
            _gemma4,
            parts={"router.scale": ("ffn_gate_inp.scale",), "router.per_expert_scale": ("ffn_down_exps.scale",)},
            by_layer=frozenset({"attention.head_count_kv", "feed_forward_length"}),
        ),
        Architecture("phi3", "phi3", _window),
        Architecture("olmo2", "olmo2", _olmo),
        Architecture("smollm3", "smollm3", _biases, permuted=True),
        Architecture("granite", "granite", _granite, permuted=True),
        Architecture(
            "granitemoe",
            "granitemoe",
            lambda metadata: _granite(metadata) | _experts(metadata),
            permuted=True,
            parts={"block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps")},
        ),
        Architecture("command-r", "cohere", _cohere, eps="layer_norm_eps"),
        Architecture("cohere2", "cohere2", _cohere2, eps="layer_norm_eps"),
        Architecture("glm4", "glm4", _attention_bias),
        Architecture(
            "stablelm",
            "stablelm",
            _stablelm,
            eps="layer_norm_eps",
            parts={
                "self_attn.q_layernorm.norms": ("attn_q_norm",),
                "self_attn.k_layernorm.norms": ("attn_k_norm",),
            },
        ),
        Architecture(
            "starcoder2",
            "starcoder2",
            lambda metadata: {"use_bias": metadata.attention_bias} | _window(metadata),
            eps="norm_epsilon",
        ),
        Architecture("ernie4_5", "ernie4_5", lambda metadata: {"use_bias": metadata.attention_bias}),
        Architecture(
            "seed_oss",
            "seed_oss",
            lambda metadata: _biases(metadata) | {"attention_out_bias": metadata.has("attn_output.bias")},
        ),
        Architecture("hunyuan-dense", "hunyuan_v1_dense", _attention_bias),
        Architecture("nemotron", "nemotron", _biases, eps="norm_eps", shifted=True),
        Architecture(
            "gpt-oss",
            "gpt_oss",
            _gpt_oss,
            parts={"mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps")},
            truncated=False,
        ),
        Architecture("deepseek2", "deepseek_v2", _deepseek),
        Architecture(
            "gpt2",
            "gpt2",
            lambda _: {"rope_parameters": None, "num_key_value_heads": None},
            eps="layer_norm_epsilon",
        ),
        Architecture("gptneox", "gpt_neox", _gpt_neox, eps="layer_norm_eps"),
        Architecture("olmoe", "olmoe", _experts),
        Architecture("olmo", "olmo", _olmo1, eps="layer_norm_eps", permuted=True),
        Architecture("arcee", "arcee", _biases, permuted=True),
        Architecture("apertus", "apertus", _attention_bias),
        Architecture("chatglm", "glm", _attention_bias),
        Architecture("phi2", "phi", eps="layer_norm_eps"),
        Architecture("exaone4", "exaone4", lambda metadata: _windows(metadata, period=4)),
        Architecture("glm4moe", "glm4_moe", _glm4_moe),
        Architecture("minimax-m2", "minimax_m2", _minimax_m2),
        Architecture(
            "dots1",
            "dots1",
            lambda metadata: _routed(metadata) | _attention_bias(metadata) | {"sliding_window": None},
        ),
        Architecture("ernie4_5-moe", "ernie4_5_moe", _ernie_moe),
    )
}
"""Supported architectures by name. Files with another architecture are rejected."""
