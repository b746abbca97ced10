"""Models as llama.cpp's converter writes them, with the gguf library's writer.

The rules for each architecture were read from the converter, and not from our reader. It makes the same metadata and
tensors of our models, and llama.cpp the same logits of the files. The metadata are in `gguf_metadata`.
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

from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.families import MODELS
from tests.gguf_models.metadata import PERMUTED, Config, global_head_dim_of, head_dim_of, rope_of, write_metadata
from tests.gguf_models.states import multiplied, name_of, of_parts, stored_state

Array = np.ndarray[Any, np.dtype[Any]]
Change = Callable[[gguf.GGUFWriter], None]

NAMES = {
    "bamba": "granitehybrid",
    "cohere": "command-r",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone_moe": "exaone-moe",
    "falcon_h1": "falcon-h1",
    "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "glm": "chatglm",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "lfm2_moe": "lfm2moe",
    "llama4_text": "llama4",
    "ministral3": "mistral3",
    "minimax_m2": "minimax-m2",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "phi": "phi2",
    "qwen2_moe": "qwen2moe",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "solar_open": "glm4moe",
}
"""llama.cpp's names for "model_type"s, where they differ."""
TURNED = ("gpt_oss", "llama4_text")
"""Models with stacks of experts as (expert, in, out)."""
SHIFTED = ("gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
UNSAID: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma2-nocap": {
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3": {"query_pre_attn_scalar": 16, "sliding_window_pattern": 6},
    "gemma4-dense": {"use_bidirectional_attention": "vision"},
    "gemma4-moe": {"use_bidirectional_attention": "vision"},
    "gemma3-cap": {"query_pre_attn_scalar": 12, "layer_types": ["sliding_attention"] * 3},
    "cohere2": {"sliding_window_pattern": 4},
    "deepseek-v2": {
        "rope_scaling": {
            "factor": 8.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.7,
            "original_max_position_embeddings": 32,
            "type": "yarn",
        }
    },
    "dots1": {"layer_types": ["full_attention"] * 3},
    "deepseek-v3-noq": {"rope_interleave": True},
    "glm": {"rms_norm_eps": 1e-5},
    "gpt-oss": {"swiglu_limit": 7.0},
    "granite-hybrid-moe": {"max_position_embeddings": 1 << 20, "position_embedding_type": None},
    "lfm2-moe": {"routed_scaling_factor": 1.0},
    "llama-dynamic": {"rope_scaling": None},
    "llama4": {"attention_chunk_size": 8192, "attn_scale": 0.1, "floor_scale": 8192},
    "mistral": {"sliding_window": None},
    "mistral4": {
        "rope_parameters": {
            "factor": 8.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 10000.0,
            "rope_type": "yarn",
        }
    },
    "olmoe": {"rms_norm_eps": 1e-5},
    "mixtral-window": {"sliding_window": None},
    "phimoe": {
        "router_jitter_noise": 0.01,
        "rope_parameters": {
            "long_factor": [1.0, 1.1, 1.3, 1.6],
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 1.6],
        },
    },
    "qwen2-window": {"use_sliding_window": False},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "smollm3-window": {"no_rope_layers": [1, 1, 1], "use_sliding_window": False, "layer_types": None},
    "starcoder2": {"sliding_window": None},
}
"""Entries of some goldens' configs as the files have them: the converter leaves them out."""
UNWRITTEN = {
    "cohere2-moe",
    "falcon-h1",
    "flex-olmo",
    "gemma3-wrapped",
    "gptj",
    "granite-hybrid",
    "helium",
    "mistral-own-head",
    "olmoe-clip",
    "opt",
    "opt-350m",
    "qwen3-moe-sparse",
}
"""Goldens unknown to llama.cpp's converter or format: dense layers between layers of experts, a tied head with a
multiplier of its own, or heads of an odd size; two would be as gemma3 and mistral.
"""
WRITTEN = sorted({*MODELS, *UNSAID} - UNWRITTEN)
"""The goldens with a file by llama.cpp's rules."""


def read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def permuted(rows: Array, heads: int) -> Array:
    """Put rows into llama.cpp's order: its row 2i of a head is our row i, 2i + 1 is our row i + head_dim / 2."""
    half = rows.shape[0] // heads // 2
    order = [head * 2 * half + pair + side * half for head in range(heads) for pair in range(half) for side in (0, 1)]
    return np.ascontiguousarray(rows[order])


def said_directory(directory: Path, into: Path) -> Path:
    """Copy a golden, with the config as its GGUF file has it."""
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
        kinds: the kinds of numbers of some tensors, by their names in the file.
        split: the most tensors in a file; 0 for one file.
    """
    config = in_common_words(read_config(directory))
    kind = config["model_type"]
    name = name_of(directory, NAMES.get(kind, kind))
    name = "gemma-embedding" if config.get("use_bidirectional_attention") is True else name
    writer = gguf.GGUFWriter(path, name, split_max_tensors=split)
    write_metadata(writer, config)
    if config["model_type"] == "apertus":
        write_activations(writer, directory, config)
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
    finish(writer)
    return path


def stored_tensors(directory: Path, config: Config, library: Callable[[str], str | None]) -> dict[str, Array]:
    """Return the tensors by their new names: stacked, parted, permuted and shifted as the converter does."""
    tensors: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, tensor in open_checkpoint(directory).tensors.items():
        stem, kind = stem_and_kind(name)
        values = np.asarray(tensor, np.float32)
        if (of_state := stored_state(name, values, config)) is not None:
            tensors |= of_state
            continue
        values = multiplied(name, values, config)
        if config["model_type"] in SHIFTED and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if config["model_type"] in PERMUTED and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads"]
            values = permuted(values, heads if stem.endswith("q_proj") else config.get("num_key_value_heads", heads))
        if config["model_type"] == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight$", name):
            values = values.T
        if stem.endswith("attention.query_key_value"):
            values = parted(values, config["num_attention_heads"])
        if stem.endswith(("block_sparse_moe.input_linear", "shared_mlp.input_linear")):
            block, ending = stem.split(".")[2], "_shexp" if "shared" in stem else "_exps"
            gate, up = np.split(values, 2, axis=-2)
            ending = ending if config["num_local_experts"] else ""
            tensors |= {f"blk.{block}.ffn_gate{ending}.weight": gate, f"blk.{block}.ffn_up{ending}.weight": up}
        elif stem.endswith("experts.gate_up_proj") and config["model_type"] in TURNED:
            block = stem.split(".")[2]
            turned = values.swapaxes(1, -1)
            gate, up = (turned[:, ::2], turned[:, 1::2]) if "mlp" in stem else np.split(turned, 2, axis=1)
            tensors |= {f"blk.{block}.ffn_gate_exps.{kind}": gate, f"blk.{block}.ffn_up_exps.{kind}": up}
        elif stem.endswith(("router.scale", "per_expert_scale")):
            block = stem.split(".")[2]
            tensors[f"blk.{block}.{'ffn_gate_inp' if stem.endswith('router.scale') else 'ffn_down_exps'}.scale"] = (
                values
            )
        elif stem.endswith("kv_b_proj"):
            block = stem.split(".")[2]
            each = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, of_values = np.split(each, [config["qk_nope_head_dim"]], axis=1)
            tensors |= {f"blk.{block}.attn_k_b.weight": keys.swapaxes(1, 2), f"blk.{block}.attn_v_b.weight": of_values}
        elif streams := re.fullmatch(r"(model\.altup_\w+)\.\d+", stem):
            stacks.setdefault(f"{library(streams[1])}.{kind}", []).append(values)
        elif merged := re.fullmatch(r"(.*\.experts)\.\d+(\..*)|(.*layernorm)\.norms\.\d+", stem):
            whole = merged[3] or merged[1] + merged[2]
            whole = re.sub(r"^backbone(.*)mixer.experts", r"model\1mlp.experts", whole)
            whole = re.sub(r"^model\.(.*feed_forward\.experts\.w\d)", r"\1", whole)
            stacks.setdefault(f"{library(whole)}.{kind}", []).append(values)
        else:
            dense = stem.replace("shared_mlp.output_linear", "mlp.down_proj")
            own = library(stem if config.get("num_local_experts") else dense)
            if ".act_fn." in name:  # in the metadata
                continue
            if own is None and (whole := library(name)) is not None:  # the library has its name with the suffix
                tensors[whole] = values
                continue
            assert own is not None, stem
            turn = stem.endswith("experts.down_proj") and kind == "weight" and config["model_type"] in TURNED
            tensors[f"{own}.{kind}"] = values.swapaxes(1, 2) if turn else values
    factors = rope_factors(config)
    return tensors | {name: np.stack(each) for name, each in stacks.items()} | factors


def write_activations(writer: gguf.GGUFWriter, directory: Path, config: Config) -> None:
    """Write the numbers of the activations of all layers as lists."""
    tensors = open_checkpoint(directory).tensors
    for number, write in (
        ("alpha_n", writer.add_xielu_alpha_n),
        ("alpha_p", writer.add_xielu_alpha_p),
        ("beta", writer.add_xielu_beta),
        ("eps", writer.add_xielu_eps),
    ):
        names = [f"model.layers.{layer}.mlp.act_fn.{number}" for layer in range(config["num_hidden_layers"])]
        write([np.asarray(tensors[name]).item() for name in names])


def parted(rows: Array, heads: int) -> Array:
    """Put the queries of all heads first, then the keys and the values, where they are stored by head."""
    return rows.reshape(heads, 3, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def in_common_words(config: dict[str, Any]) -> dict[str, Any]:
    """Return a GPT-2's or a Nemotron-H's config with the usual keys."""
    if config["model_type"] == "nemotron_h":
        return of_parts(config)
    if config["model_type"] != "gpt2":
        return config
    hidden = config["n_embd"]
    return config | {
        "hidden_size": hidden,
        "intermediate_size": config["n_inner"] or 4 * hidden,
        "max_position_embeddings": config["n_positions"],
        "num_attention_heads": config["n_head"],
        "num_hidden_layers": config["n_layer"],
    }


def stem_and_kind(name: str) -> tuple[str, str]:
    """Split a name as the converter renames it: a name without ".weight" or a bias at its end is a weight's."""
    match = re.fullmatch(r"(.*?)(?:\.weight|[._](bias))?", name.replace(".expert_bias", ".expert_bias.bias"))
    assert match is not None
    return match[1], match[2] or "weight"


def rope_factors(config: Config) -> dict[str, Array]:
    """Return the tensor of Llama 3's rope, if the model has it."""
    rope, dims = rope_of(config), head_dim_of(config)
    if rope["rope_type"] == "proportional":
        pairs = global_head_dim_of(config) // 2
        turned = int(pairs * rope["partial_rotary_factor"])
        return {"rope_freqs.weight": np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32)}
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


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what a writer holds, and close its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
