"""Models as llama.cpp's converter writes them, with the gguf library's writer.

What the converter does to each architecture was read from it, and not from our reader. It makes the same metadata and
tensors of these models, and llama.cpp the same logits of the files.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rekindle.models.checkpoint.open import open_checkpoint
from rekindle.models.config import Llama3Scaling
from tests.families import MODELS

Array = np.ndarray[Any, np.dtype[Any]]
Config = Mapping[str, Any]
Change = Callable[[gguf.GGUFWriter], None]

NAMES = {
    "cohere": "command-r",
    "gemma3_text": "gemma3",
    "granitemoe": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
"""llama.cpp's names of the "model_type"s that it calls otherwise."""
PERMUTED = ("llama", "mistral", "mixtral", "smollm3", "granite", "granitemoe")
SHIFTED = ("gemma", "gemma2", "gemma3_text", "nemotron")
UNSAID: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma2-nocap": {
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3": {"query_pre_attn_scalar": 16, "sliding_window_pattern": 6},
    "gemma3-cap": {"query_pre_attn_scalar": 12, "layer_types": ["sliding_attention"] * 3},
    "cohere2": {"sliding_window_pattern": 4},
    "mistral": {"sliding_window": None},
    "mixtral-window": {"sliding_window": None},
    "qwen2-window": {"use_sliding_window": False},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "smollm3-window": {"no_rope_layers": [1, 1, 1], "use_sliding_window": False, "layer_types": None},
    "starcoder2": {"sliding_window": None},
}
"""What the converter does not write of some goldens: the files say what is here instead. There is no golden of
qwen3-moe-sparse, as llama.cpp knows no dense layers between those of experts.
"""
WRITTEN = sorted({*MODELS, *UNSAID} - {"qwen3-moe-sparse"})
"""The goldens that llama.cpp writes."""


def read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def permuted(rows: Array, heads: int) -> Array:
    """Put rows into llama.cpp's order: its row 2i of a head is our row i, 2i + 1 is our row i + head_dim / 2."""
    half = rows.shape[0] // heads // 2
    order = [head * 2 * half + pair + side * half for head in range(heads) for pair in range(half) for side in (0, 1)]
    return np.ascontiguousarray(rows[order])


def said_directory(directory: Path, into: Path) -> Path:
    """Make a copy of a golden whose config says what a file of it says."""
    shutil.copytree(directory, into, symlinks=True)
    config = read_config(directory) | UNSAID.get(directory.name, {})
    (into / "config.json").write_text(json.dumps(config))
    return into


def write_model(
    directory: Path, path: Path, change: Change | None = None, kinds: Mapping[str, str] | None = None, split: int = 0
) -> Path:
    """Write a Hugging Face directory as a file of float32 numbers.

    Args:
        change: of the writer, before the file is written.
        kinds: of numbers, for tensors by their names in the file that have another.
        split: the most tensors in a file; 0 for one file.
    """
    config = read_config(directory)
    kind = config["model_type"]
    name = NAMES.get(kind, kind)
    writer = gguf.GGUFWriter(path, name, split_max_tensors=split)
    write_metadata(writer, config)
    number = next(number for number, each in gguf.MODEL_ARCH_NAMES.items() if each == name)
    library = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for own, values in stored_tensors(directory, config, library.get_name).items():
        floats = np.ascontiguousarray(values, np.float32)
        if kinds is not None and own in kinds:
            quantized = gguf.GGMLQuantizationType[kinds[own]]
            writer.add_tensor(own, gguf.quantize(floats, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(own, floats)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_tensors(directory: Path, config: Config, library: Callable[[str], str | None]) -> dict[str, Array]:
    """Return the tensors by the names that they get: stacked, parted, permuted and shifted as the converter does."""
    found: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, tensor in open_checkpoint(directory).tensors.items():
        stem, _, kind = name.rpartition(".")
        values = tensor.astype(np.float32)
        if config["model_type"] in SHIFTED and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if config["model_type"] in PERMUTED and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads"]
            values = permuted(values, heads if stem.endswith("q_proj") else config.get("num_key_value_heads", heads))
        if stem.endswith("block_sparse_moe.input_linear"):
            block = stem.split(".")[2]
            gate, up = np.split(values, 2, axis=1)
            found |= {f"blk.{block}.ffn_gate_exps.weight": gate, f"blk.{block}.ffn_up_exps.weight": up}
        elif merged := re.fullmatch(r"(.*\.experts)\.\d+(\..*)|(.*layernorm)\.norms\.\d+", stem):
            whole = merged[3] or merged[1] + merged[2]
            stacks.setdefault(f"{library(whole)}.{kind}", []).append(values)
        else:
            own = library(stem)
            assert own is not None, stem
            found[f"{own}.{kind}"] = values
    factors = rope_factors(config)
    return found | {name: np.stack(each) for name, each in stacks.items()} | factors


def rope_of(config: Config) -> dict[str, Any]:
    """Return what the config says of its rope, in the newer spelling, of the layers that see everything."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope = dict(rope.get("full_attention", rope))
    for key in ("rope_theta", "partial_rotary_factor"):
        if config.get(key) is not None:
            rope.setdefault(key, config[key])
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


def head_dim_of(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def rope_factors(config: Config) -> dict[str, Array]:
    """Return the tensor of Llama 3's rope, if the model has it."""
    rope, dims = rope_of(config), head_dim_of(config)
    if rope["rope_type"] != "llama3":
        return {}
    low, high, context = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    scaling = Llama3Scaling(rope["factor"], low, high, context)
    turns = rope["rope_theta"] ** (-np.arange(0, dims, 2) / dims) / (2 * math.pi)
    return {"rope_freqs.weight": llama3_factors(scaling, turns).astype(np.float32)}


def llama3_factors(scaling: Llama3Scaling, turns: Array) -> Array:
    """Return the divisors of llama.cpp's converter for frequencies in turns per token."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((scaling.original_context * turns - low) / (high - low), 0.0, 1.0)
    factors: Array = 1.0 / ((1.0 - smooth) / scaling.factor + smooth)
    return factors


def write_metadata(writer: gguf.GGUFWriter, config: Config) -> None:
    """Write what every model has, and what only some have."""
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    rms = config.get("rms_norm_eps", config.get("norm_eps"))
    centred = next((config[key] for key in ("layer_norm_eps", "norm_epsilon", "norm_eps") if key in config), None)
    if rms is not None:
        writer.add_layer_norm_rms_eps(rms)
    if centred is not None:
        writer.add_layer_norm_eps(centred)
    _write_rope(writer, config)
    _write_experts(writer, config)
    if config["model_type"] in _SPECIAL:
        _SPECIAL[config["model_type"]](writer, config)


def _write_rope(writer: gguf.GGUFWriter, config: Config) -> None:
    rope, kind = rope_of(config), config["model_type"]
    writer.add_rope_freq_base(rope["rope_theta"])
    dims = int(head_dim_of(config) * rope.get("partial_rotary_factor", 0.5 if kind == "glm4" else 1.0))
    if kind in (*PERMUTED, "phi3", "cohere2", "glm4", "stablelm", "nemotron"):
        writer.add_rope_dimension_count(dims)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if kind in ("cohere", "cohere2", "nemotron"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind == "hunyuan_v1_dense":
        dims = head_dim_of(config)
        writer.kv_data[0].pop("hunyuan-dense.rope.freq_base")
        writer.add_rope_freq_base(rope["rope_theta"] * rope["alpha"] ** (dims / (dims - 2)))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)


def _write_experts(writer: gguf.GGUFWriter, config: Config) -> None:
    count = config.get("num_local_experts", config.get("num_experts"))
    if count is not None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _granite(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


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


def _olmo3(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_rope_freq_base_swa(rope_of(config)["rope_theta"])
    writer.add_sliding_window_pattern([(place + 1) % 4 != 0 for place in range(config["num_hidden_layers"])])


def _cohere2(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_logit_scale(config["logit_scale"])
    writer.add_sliding_window(config["sliding_window"])


def _phi3(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    writer.add_sliding_window(config["sliding_window"] or 0)


_SPECIAL: dict[str, Callable[[gguf.GGUFWriter, Config], None]] = {
    "cohere": lambda writer, config: writer.add_logit_scale(config["logit_scale"]),
    "cohere2": _cohere2,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "granite": _granite,
    "granitemoe": _granite,
    "olmo3": _olmo3,
    "phi3": _phi3,
    "stablelm": lambda writer, config: writer.add_parallel_residual(config["use_parallel_residual"]),
}
