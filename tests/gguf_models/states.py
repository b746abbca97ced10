"""Tensors and metadata of layers with a state in files of llama.cpp's converter, as was read from it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Config = Mapping[str, Any]
QWENS = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")


def name_of(directory: Path, name: str) -> str:
    """Return the name of an architecture. A Nemotron-H with experts has another one."""
    return f"{name}_moe" if directory.name == "nemotron-h-moe" else name


def stored_state(name: str, values: Array, config: Config) -> dict[str, Array] | None:
    """Return the stored tensors of a tensor of a layer with a state; None for other tensors."""
    match = re.fullmatch(r".*layers\.(\d+)\.(mamba|mixer|conv|linear_attn)\.(.*)", name)
    if match is None or re.match(r"[qkvo]_proj|gate|up_proj|down_proj|experts|shared_experts|fc", match[3]):
        return None
    block, part, own = f"blk.{match[1]}.", match[2], match[3]
    if part == "conv":
        own = own.replace("conv.", "shortconv.conv.", 1) if own.startswith("conv") else f"shortconv.{own}"
        return {block + own: values.squeeze(1) if values.ndim == 3 else values}
    if part == "linear_attn":
        return {block + own: each for own, each in of_delta_net(own, values, config).items()}
    groups = config.get("mamba_n_groups", config.get("n_groups"))
    if own.startswith("in_proj") and config["model_type"] == "falcon_h1":
        values = values * np.float32(config["ssm_in_multiplier"]) * factors(config, groups)[:, None]
    elif own.startswith("out_proj") and config["model_type"] == "falcon_h1":
        values = values * np.float32(config["ssm_out_multiplier"])
    names = {
        "A_log": ("ssm_a", -np.exp(values)[..., None]),
        "D": ("ssm_d", values[..., None]),
        "dt_bias": ("ssm_dt.bias", values),
        "norm.weight": ("ssm_norm.weight", values.reshape(groups, -1) if own == "norm.weight" else values),
        "conv1d.weight": ("ssm_conv1d.weight", values.squeeze()),
    }
    end, each = names.get(own, (f"ssm_{own.replace('_proj', '')}", values))
    return {block + end: each}


def factors(config: Config, groups: int) -> Array:
    """Return the factor of each projected feature of a Falcon-H1."""
    inner, keys = config["mamba_d_ssm"], groups * config["mamba_d_state"]
    sizes = [inner, inner, keys, keys, config["mamba_n_heads"]]
    return np.repeat(np.array(config["ssm_multipliers"], np.float32), sizes)


def multiplied(name: str, values: Array, config: Config) -> Array:
    """Return a tensor of a Falcon-H1 times its multipliers; others unchanged."""
    if config["model_type"] != "falcon_h1":
        return values
    into = config["attention_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    of_part = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config["key_multiplier"] * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": config["attention_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    return values * np.float32(next((factor for part, factor in of_part.items() if part in name), 1.0))


def of_delta_net(own: str, values: Array, config: Config) -> dict[str, Array]:
    """Return the stored tensors of a tensor of a gated delta net."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    per_key = heads // keys
    if own == "in_proj_qkvz.weight":
        rows = values.reshape(keys, -1, values.shape[-1])
        parts = np.split(rows, np.cumsum([key, key, per_key * value]), axis=1)
        q, k, v, z = (part.reshape(-1, values.shape[-1]) for part in parts)
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    if config["model_type"] != "qwen3_next":
        values = tiled(own, values, keys, key, value)
    names = {
        "A_log": "ssm_a",
        "dt_bias": "ssm_dt.bias",
        "conv1d.weight": "ssm_conv1d.weight",
        "norm.weight": "ssm_norm.weight",
        "out_proj.weight": "ssm_out.weight",
        "in_proj_qkv.weight": "attn_qkv.weight",
        "in_proj_z.weight": "attn_gate.weight",
        "in_proj_b.weight": "ssm_beta.weight",
        "in_proj_a.weight": "ssm_alpha.weight",
        "in_proj_ba.weight": "ssm_ba.weight",
    }
    values = -np.exp(values) if own == "A_log" else values
    return {names[own]: values.squeeze() if own == "conv1d.weight" else values}


def tiled(own: str, values: Array, keys: int, key: int, value: int) -> Array:
    """Put the first value heads of all key heads first, then the second ones."""

    def turned(rows: Array, size: int) -> Array:
        return rows.reshape(keys, -1, size, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if own.startswith(("in_proj_qkv", "conv1d")):
        same, moved = np.split(values, [2 * keys * key])
        return np.concatenate([same, turned(moved, value)])
    if own.startswith("out_proj"):
        return turned(values.T, value).T
    if own.startswith("norm"):
        return values
    return turned(values, value if own.startswith("in_proj_z") else 1)


def of_parts(config: dict[str, Any]) -> dict[str, Any]:
    """Return a Nemotron-H's config with the number of layers, and without unused keys of experts."""
    kinds = config["layers_block_type"]
    unused = () if "moe" in kinds else ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group")
    return {key: value for key, value in config.items() if key not in unused} | {"num_hidden_layers": len(kinds)}


def write_convolutions(writer: gguf.GGUFWriter, config: Config) -> None:
    _write_kv_heads(writer, config, "full_attention", config["layer_types"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    width = config["intermediate_size"]
    if config["model_type"] == "lfm2":
        multiple = config["block_multiple_of"]
        width = -(-int(config["block_ffn_dim_multiplier"] * int(2 * width / 3)) // multiple) * multiple
        writer.add_feed_forward_length(width)
    else:
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_layer_norm_rms_eps(config["norm_eps"])


def write_delta_nets(writer: gguf.GGUFWriter, config: Config) -> None:
    heads = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * heads)
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    if config["model_type"] != "qwen3_next":
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def write_mamba(writer: gguf.GGUFWriter, config: Config) -> None:
    keys = ("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_d_head")
    _write_mamba_sizes(writer, *(config[key] for key in keys))


def write_granite(writer: gguf.GGUFWriter, config: Config) -> None:
    is_bamba = config["model_type"] == "bamba"
    kinds = ["full_attention" if i in config.get("attn_layer_indices", ()) else "" for i in range(64)]
    kinds = kinds[: config["num_hidden_layers"]] if is_bamba else config["layer_types"]
    write_mamba(writer, config)
    _write_kv_heads(writer, config, "full_attention", kinds)
    writer.add_rope_scaling_finetuned(is_bamba)
    if is_bamba:
        _replace(writer, "rope.dimension_count")
        writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"] // 2)
        return
    _replace(writer, "context_length")
    writer.add_context_length(1 << 20)
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


def write_nemotron(writer: gguf.GGUFWriter, config: Config) -> None:
    kinds = config["layers_block_type"]
    keys = ("conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads", "mamba_head_dim")
    _write_mamba_sizes(writer, *(config[key] for key in keys))
    _write_kv_heads(writer, config, "full_attention", kinds)
    writer.add_rope_scaling_finetuned(False)
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    _replace(writer, "feed_forward_length")
    if "moe" not in kinds:
        writer.add_feed_forward_length([config["intermediate_size"] if kind == "mlp" else 0 for kind in kinds])
        return
    writer.add_feed_forward_length([config["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds])
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_moe_latent_size(config["moe_latent_size"])


def _write_mamba_sizes(writer: gguf.GGUFWriter, kernel: int, state: int, groups: int, heads: int, width: int) -> None:
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_inner_size(heads * width)
    writer.add_ssm_time_step_rank(heads)


def _write_kv_heads(writer: gguf.GGUFWriter, config: Config, kind: str, kinds: list[str]) -> None:
    _replace(writer, "attention.head_count_kv")
    writer.add_head_count_kv([config["num_key_value_heads"] if each == kind else 0 for each in kinds])


def _replace(writer: gguf.GGUFWriter, key: str) -> None:
    """Remove the common value of a key, before another one."""
    writer.kv_data[0].pop(f"{writer.arch}.{key}")
