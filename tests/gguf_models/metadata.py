"""The metadata of a model by the rules of llama.cpp's converter, read from its source and not from our reader."""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np

from tests.gguf_models.states import write_convolutions, write_delta_nets, write_granite, write_mamba, write_nemotron

Config = Mapping[str, Any]

PERMUTED = (
    *("llama", "ministral3", "mistral", "mixtral", "smollm3", "olmo", "arcee"),
    *("granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "bamba", "nemotron_h"),
)
_SIGMOID = ("dots1", "glm4_moe", "minimax_m2", "solar_open")
_SCALES = {
    "attention_multiplier": "attention_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_SHARED = {
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
}
_DENSE = {"first_k_dense_replace": "leading_dense_block_count"}
_WINDOW = {"sliding_window": "sliding_window"}
_WIDTH = {"intermediate_size": "expert_feed_forward_length"}
_OWN: dict[str, dict[str, str]] = {
    "afmoe": {
        **_WINDOW,
        "num_shared_experts": "expert_shared_count",
        "num_dense_layers": "leading_dense_block_count",
        "route_norm": "expert_weights_norm",
        "route_scale": "expert_weights_scale",
    },
    "cohere": {"logit_scale": "logit_scale"},
    "cohere2": {**_WINDOW, "logit_scale": "logit_scale"},
    "dots1": _SHARED | _DENSE,
    "ernie4_5_moe": {
        "moe_num_experts": "expert_count",
        "moe_k": "expert_used_count",
        "moe_layer_interval": "interleave_moe_layer_step",
        "moe_layer_start_index": "leading_dense_block_count",
        "moe_num_shared_experts": "expert_shared_count",
    },
    "exaone_moe": {**_SHARED, **_DENSE, "num_shared_experts": "expert_shared_count"},
    "glm4_moe": {**_SHARED, **_DENSE, "num_nextn_predict_layers": "nextn_predict_layers"},
    "gpt_neox": {"use_parallel_residual": "parallel_residual"},
    "gpt_oss": _WINDOW | _WIDTH,
    "granite": _SCALES,
    "granitemoe": _SCALES,
    "granitemoeshared": {**_SCALES, "shared_intermediate_size": "expert_shared_feed_forward_length"},
    "hunyuan_v1_moe": _WIDTH,
    "llama4_text": {**_WIDTH, "interleave_moe_layer_step": "interleave_moe_layer_step"},
    "minimax_m2": _WIDTH,
    "solar_open": _SHARED,
    "stablelm": {"use_parallel_residual": "parallel_residual"},
}
"""The methods of the writer for keys of the configs of some models."""


def rope_of(config: Config) -> dict[str, Any]:
    """Return the config's rope in the newer spelling, for the layers with full attention."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope = dict(rope.get("full_attention", rope))
    for key in ("rope_theta", "partial_rotary_factor"):
        if config.get(key) is not None:
            rope.setdefault(key, config[key])
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


def head_dim_of(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def global_head_dim_of(config: Config) -> int:
    """Return the size of heads in layers with full attention, of a Gemma 4."""
    return int(next(iter(config["per_layer_config"].values()))["head_dim"])


def write_metadata(writer: gguf.GGUFWriter, config: Config) -> None:
    """Write the metadata of every model, and the special ones of its architecture."""
    if "kv_lora_rank" in config:
        config = {**config, "head_dim": None, "num_key_value_heads": 1}
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    nextn = config.get("num_nextn_predict_layers", 0) if config["model_type"] == "glm4_moe" else 0
    writer.add_block_count(config["num_hidden_layers"] + nextn)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config.get("intermediate_size_mlp", config.get("intermediate_size", 10240)))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    rms = 1e-5 if config["model_type"] == "glm" else config.get("rms_norm_eps", config.get("norm_eps"))
    names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    centred = next((config[key] for key in names if key in config), None)
    if rms is not None:
        writer.add_layer_norm_rms_eps(rms)
    if centred is not None:
        writer.add_layer_norm_eps(centred)
    _write_rope(writer, config)
    _write_experts(writer, config)
    if config["model_type"] in _SIGMOID:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    for key, method in _OWN.get(config["model_type"], {}).items():
        if key in config:
            getattr(writer, f"add_{method}")(config[key])
    if config["model_type"] in _SPECIAL:
        _SPECIAL[config["model_type"]](writer, config)


def _write_rope(writer: gguf.GGUFWriter, config: Config) -> None:
    rope, kind = rope_of(config), config["model_type"]
    if "rope_theta" not in rope:
        return
    writer.add_rope_freq_base(rope["rope_theta"])
    dims = int(head_dim_of(config) * rope.get("partial_rotary_factor", 0.5 if kind == "glm4" else 1.0))
    if kind in (
        *PERMUTED,
        "afmoe",
        "phi",
        "phi3",
        "phimoe",
        "solar_open",
        "cohere2",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_neox",
        "llama4_text",
        "minimax_m2",
        "stablelm",
        "nemotron",
    ):
        writer.add_rope_dimension_count(dims)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if "beta_slow" in rope:
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if kind == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind in ("cohere", "cohere2", "exaone_moe", "nemotron"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind in ("hunyuan_v1_dense", "hunyuan_v1_moe"):
        dims = head_dim_of(config)
        writer.kv_data[0].pop(f"{writer.arch}.rope.freq_base")
        writer.add_rope_freq_base(rope["rope_theta"] * rope["alpha"] ** (dims / (dims - 2)))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)


def _write_experts(writer: gguf.GGUFWriter, config: Config) -> None:
    count = config.get("num_local_experts", config.get("num_experts", config.get("n_routed_experts")))
    if count is not None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(
            config.get("num_experts_per_tok", config.get("top_k_experts", config.get("moe_topk")))
        )
    if config.get("moe_intermediate_size") is not None:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "n_group" in config:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if "scoring_func" in config:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType[config["scoring_func"].upper()])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _gemma2(writer: gguf.GGUFWriter, config: Config) -> None:
    for cap, write in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
    ):
        if config[cap] is not None:
            write(config[cap])
    writer.add_sliding_window(config["sliding_window"])


def _gemma3(writer: gguf.GGUFWriter, config: Config) -> None:
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta")
    writer.add_rope_freq_base_swa(local or config["rope_local_base_freq"])
    writer.add_sliding_window(config["sliding_window"])


def _gemma3n(writer: gguf.GGUFWriter, config: Config) -> None:
    _gemma3(writer, config)
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    normal, infinity = NormalDist(), float("inf")
    sparsities = config["activation_sparsity_pattern"]
    writer.add_activation_sparsity_scale([normal.inv_cdf(each) if each else -infinity for each in sparsities])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _gemma4(writer: gguf.GGUFWriter, config: Config) -> None:
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    full_dim, shared = global_head_dim_of(config), config["num_kv_shared_layers"]
    by_layer = config["per_layer_config"]
    for key in ("attention.key_length", "attention.value_length", "attention.head_count_kv", "feed_forward_length"):
        writer.kv_data[0].pop(f"gemma4.{key}")
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(sliding)
    writer.add_key_length(full_dim)
    writer.add_value_length(full_dim)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    width = config["intermediate_size"]
    first = config["num_hidden_layers"] - shared
    wide = [2 * width if place >= first else width for place in range(config["num_hidden_layers"])]
    writer.add_feed_forward_length(wide if config["use_double_wide_mlp"] else width)
    heads = [
        by_layer.get(str(place), {}).get("num_key_value_heads", config["num_key_value_heads"])
        for place in range(config["num_hidden_layers"])
    ]
    writer.add_head_count_kv(heads if len(set(heads)) > 1 else heads[0])
    writer.add_rope_dimension_count(full_dim)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _olmo3(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_rope_freq_base_swa(rope_of(config)["rope_theta"])
    writer.add_sliding_window_pattern([(place + 1) % 4 != 0 for place in range(config["num_hidden_layers"])])


def _phi3(writer: gguf.GGUFWriter, config: Config) -> None:
    context = config["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(context)
    rope = rope_of(config)
    if rope["rope_type"] == "longrope":
        scale = config["max_position_embeddings"] / context
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(context)))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))
    writer.add_sliding_window(config["sliding_window"] or 0)


def _deepseek(writer: gguf.GGUFWriter, config: Config) -> None:
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_leading_dense_block_count(config.get("first_k_dense_replace", 1))
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + turned)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    writer.add_rope_dimension_count(turned)
    if "mscale_all_dim" in rope_of(config):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope_of(config)["mscale_all_dim"])


def _exaone4(writer: gguf.GGUFWriter, config: Config) -> None:
    if config["sliding_window"] is not None:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _exaone_moe(writer: gguf.GGUFWriter, config: Config) -> None:
    _exaone4(writer, config)
    writer.add_expert_shared_feed_forward_length(config["moe_intermediate_size"] * config["num_shared_experts"])
    writer.add_nextn_predict_layers(config.get("num_nextn_predict_layers", 0))


def _olmoe(writer: gguf.GGUFWriter, config: Config) -> None:
    (metadata,) = writer.kv_data
    metadata.pop("olmoe.attention.layer_norm_rms_epsilon")
    writer.add_layer_norm_rms_eps(1e-5)


def _olmo(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_layer_norm_eps(1e-5)
    if config["clip_qkv"] is not None:
        writer.add_clamp_kqv(config["clip_qkv"])


def _hunyuan_moe(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
    writer.add_expert_shared_count(1)


_SPECIAL: dict[str, Callable[[gguf.GGUFWriter, Config], None]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "exaone4": _exaone4,
    "exaone_moe": _exaone_moe,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "glm4_moe_lite": _deepseek,
    "bamba": write_granite,
    "falcon_h1": write_mamba,
    "granitemoehybrid": write_granite,
    "hunyuan_v1_moe": _hunyuan_moe,
    "lfm2": write_convolutions,
    "lfm2_moe": write_convolutions,
    "nemotron_h": write_nemotron,
    "qwen3_5_moe_text": write_delta_nets,
    "qwen3_5_text": write_delta_nets,
    "qwen3_next": write_delta_nets,
    "mistral4": _deepseek,
    "olmo": _olmo,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "phi3": _phi3,
    "phimoe": _phi3,
}
