"""The architectures whose files are read, and all that is special about each."""

from collections.abc import Mapping
from typing import Any, Final

from rekindle.core.checkpoints.gguf.architecture import Architecture, FileMetadata
from rekindle.core.errors import UnsupportedModel

_SOFTMAX, _SIGMOID = 1, 2
"""Values of "expert_gating_func"."""


def _biases(said: FileMetadata) -> dict[str, Any]:
    return {"attention_bias": said.attention_bias, "mlp_bias": said.has("ffn_up.bias")}


def _attention_bias(said: FileMetadata) -> dict[str, Any]:
    return {"attention_bias": said.attention_bias}


def _window(said: FileMetadata) -> dict[str, Any]:
    """Return the window of all layers, if there is one."""
    return {"sliding_window": said.keys.get("attention.sliding_window") or None}


def _windows(said: FileMetadata, period: int, window: int = 0) -> dict[str, Any]:
    """Return which layers see a window.

    Args:
        period: of so many layers the last sees everything, if the file does not say.
        window: if the file does not say, in tokens.
    """
    keys = said.keys
    window = keys.get("attention.sliding_window", window)
    pattern = keys.get("attention.sliding_window_pattern", period)
    if not isinstance(pattern, list):
        pattern = [not pattern or i % pattern < pattern - 1 for i in range(keys.size("block_count"))]
    types = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
    return {"sliding_window": window, "layer_types": types} if window else {"sliding_window": None}


def _llama(said: FileMetadata) -> dict[str, Any]:
    """Tell the three families apart whose files llama.cpp gives this name."""
    if said.keys.get("expert_count"):
        said.keys.refuse("expert_weights_norm", True)
        return {"model_type": "mixtral"} | _experts(said) | _window(said)
    if said.keys.get("attention.sliding_window"):
        return {"model_type": "mistral"} | _window(said)
    return _biases(said)


def _experts(said: FileMetadata) -> dict[str, Any]:
    keys = said.keys
    return {"num_local_experts": keys.get("expert_count"), "num_experts_per_tok": keys.get("expert_used_count")}


def _qwen_moe(said: FileMetadata, normalised: bool) -> dict[str, Any]:
    width = said.file.shapes.get("blk.0.ffn_down_exps.weight", (None,))[-1]
    return _experts(said) | {
        "moe_intermediate_size": said.keys.get("expert_feed_forward_length", width),
        "norm_topk_prob": said.keys.flag("expert_weights_norm", normalised),
    }


def _qwen2_moe(said: FileMetadata) -> dict[str, Any]:
    width = said.file.shapes.get("blk.0.ffn_down_shexp.weight", (None,))[-1]
    shared = said.keys.get("expert_shared_feed_forward_length", width)
    more = {"shared_expert_intermediate_size": shared, "qkv_bias": said.attention_bias}
    return _qwen_moe(said, normalised=False) | more


def _gemma2(said: FileMetadata) -> dict[str, Any]:
    keys = said.keys
    caps = {
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
    }
    return _windows(said, period=2, window=4096) | caps | _of_gemma(said, layers_of_27b=46)


def _gemma3(said: FileMetadata) -> dict[str, Any]:
    keys = said.keys
    more = {
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
    }
    return _windows(said, period=6) | more | _of_gemma(said, layers_of_27b=62)


def _of_gemma(said: FileMetadata, layers_of_27b: int) -> dict[str, Any]:
    """Return what the files do not say: the scale of the attention, in which the models of 27B differ."""
    keys = said.keys
    largest = keys.size("block_count") == layers_of_27b
    scalar = keys.size("embedding_length") // keys.size("attention.head_count") if largest else said.head_dim
    return {"query_pre_attn_scalar": scalar} | _attention_bias(said)


def _olmo(said: FileMetadata) -> dict[str, Any]:
    """Tell OLMo 3 by its windows."""
    if said.keys.get("attention.sliding_window"):
        return {"model_type": "olmo3"} | _windows(said, period=4) | _attention_bias(said)
    return _attention_bias(said)


def _granite(said: FileMetadata) -> dict[str, Any]:
    keys = said.keys
    if not keys.flag("rope.scaling.finetuned", True):
        raise UnsupportedModel(f"{keys.source}: a Granite without positions (rope.scaling.finetuned) is not supported")
    return _biases(said) | {
        "attention_multiplier": keys.number("attention.scale", 0.0) or said.head_dim**-0.5,
        "embedding_multiplier": keys.number("embedding_scale", 1.0) or 1.0,
        "residual_multiplier": keys.number("residual_scale", 1.0) or 1.0,
        "logits_scaling": keys.number("logit_scale", 1.0) or 1.0,
    }


def _cohere(said: FileMetadata) -> dict[str, Any]:
    more = {"logit_scale": said.keys.number("logit_scale"), "use_qk_norm": said.has("attn_q_norm.weight")}
    return _attention_bias(said) | more


def _cohere2(said: FileMetadata) -> dict[str, Any]:
    more = {"logit_scale": said.keys.number("logit_scale")}
    return _attention_bias(said) | _windows(said, period=4) | more


def _stablelm(said: FileMetadata) -> dict[str, Any]:
    return {
        "use_parallel_residual": not said.has("ffn_norm.weight"),
        "use_qkv_bias": said.attention_bias,
        "qk_layernorm": said.has("attn_q_norm.weight"),
    }


def _gpt_oss(said: FileMetadata) -> dict[str, Any]:
    return _experts(said) | _windows(said, period=2) | _attention_bias(said)


def _deepseek(said: FileMetadata) -> dict[str, Any]:
    """Tell DeepSeek-V3 from V2 by its scores, or by the correction of these if the file does not say."""
    keys = said.keys
    corrected = any(name.endswith(".exp_probs_b.bias") for name in said.file.shapes)
    scores = keys.get("expert_gating_func") or (_SIGMOID if corrected else _SOFTMAX)
    keys.refuse("expert_gating_func", 0, _SOFTMAX, _SIGMOID)
    groups = keys.get("expert_group_count") or 1
    settings = _latent(said) | {
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


def _latent(said: FileMetadata) -> dict[str, Any]:
    """Return the sizes of latent attention. Older files have those of whole heads under the names that others use."""
    keys = said.keys
    whole = keys.get("attention.key_length"), keys.get("attention.value_length")
    turned = keys.size("rope.dimension_count")
    key = keys.size("attention.key_length_mla", whole[0])
    if key <= turned:
        raise keys.wrong("attention.key_length_mla", f"must be more than {turned}, the numbers that turn", key)
    return {
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "qk_nope_head_dim": key - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": keys.size("attention.value_length_mla", whole[1]),
    }


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    each.name: each
    for each in (
        Architecture("llama", "llama", _llama, permuted=True),
        Architecture("qwen2", "qwen2"),
        Architecture("qwen2moe", "qwen2_moe", _qwen2_moe),
        Architecture("qwen3", "qwen3", _attention_bias),
        Architecture("qwen3moe", "qwen3_moe", lambda said: _qwen_moe(said, normalised=True) | _attention_bias(said)),
        Architecture("gemma", "gemma", _attention_bias, shifted=True),
        Architecture("gemma2", "gemma2", _gemma2, shifted=True),
        Architecture("gemma3", "gemma3_text", _gemma3, shifted=True),
        Architecture("phi3", "phi3", _window),
        Architecture("olmo2", "olmo2", _olmo),
        Architecture("smollm3", "smollm3", _biases, permuted=True),
        Architecture("granite", "granite", _granite, permuted=True),
        Architecture(
            "granitemoe",
            "granitemoe",
            lambda said: _granite(said) | _experts(said),
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
            lambda said: {"use_bias": said.attention_bias} | _window(said),
            eps="norm_epsilon",
        ),
        Architecture("ernie4_5", "ernie4_5", lambda said: {"use_bias": said.attention_bias}),
        Architecture(
            "seed_oss", "seed_oss", lambda said: _biases(said) | {"attention_out_bias": said.has("attn_output.bias")}
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
    )
}
"""By the name that files give: a file of another one is refused."""
