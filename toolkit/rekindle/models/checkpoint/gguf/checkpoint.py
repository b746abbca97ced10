"""Opening a GGUF file: llama.cpp's names and conventions are turned back into Hugging Face's."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rekindle.errors import CheckpointError, UnsupportedModel
from rekindle.models.checkpoint.checkpoint import Array, Checkpoint, LazyTensors, check_shapes
from rekindle.models.checkpoint.gguf.file import GGUFFile, open_gguf_file
from rekindle.models.checkpoint.gguf.rope import find_scaling
from rekindle.models.checkpoint.gguf.tokenizer import gguf_tokenizer
from rekindle.models.decoder import expected_shapes
from rekindle.models.families.known import FAMILIES, parse_config

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_READ = ("llama", "qwen2", "qwen3")  # llama.cpp changes the tensors of others in ways that are not undone here
# Keys of the metadata below the architecture's name, by the key in config.json.
_NUMBERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file: read its header and tokenizer, and leave the weights on disk.

    Raises:
        UnsupportedModel: the model's architecture, tokenizer, or an option is not implemented.
        CheckpointError: the file is truncated or corrupt, or a tensor is missing or has a wrong shape.
    """
    source = str(path)
    file = open_gguf_file(path)
    names = {hf: own for own in file.shapes if (hf := _huggingface_name(own)) is not None}
    config = parse_config(_settings(file, names, source), source)
    check_shapes({name: file.shapes[own] for name, own in names.items()}, config, source)
    heads = {"q_proj": config.attention.heads, "k_proj": config.attention.kv_heads} if config.family == "llama" else {}
    loaders = {
        name: partial(_read, file, names[name], heads.get(name.split(".")[-2])) for name in expected_shapes(config)
    }
    tokenizer = gguf_tokenizer(file.metadata, source)
    return Checkpoint(source, config, LazyTensors(loaders), _eos_ids(file), tokenizer, {}, (path,))


def unpermute(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's order of the rows of a Llama's query or key projection.

    llama.cpp rotates neighbours and stores a head's rows as (0, half, 1, half + 1, ...); `layers.rotate` pairs i with
    i + half.

    Args:
        rows: (heads * head_dim, ...).
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _read(file: GGUFFile, name: str, heads: int | None) -> Array:
    """Read a tensor; `heads` is given for those whose rows llama.cpp has in another order."""
    return file.read(name) if heads is None else unpermute(file.read(name), heads)


def _huggingface_name(own: str) -> str | None:
    """Turn `blk.0.attn_q.weight` into `model.layers.0.self_attn.q_proj.weight`; return None for unknown names."""
    stem, _, kind = own.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}" if block == "blk" and part in _LAYER else None


def _settings(file: GGUFFile, names: Mapping[str, str], source: str) -> dict[str, Any]:
    """Return the metadata in the form of config.json."""
    family = file.metadata.get("general.architecture")
    if family not in _READ:
        raise UnsupportedModel(
            f"{source}: the architecture {family!r} is not supported in GGUF files. Supported are: {', '.join(_READ)}"
        )
    settings = {key: file.metadata.get(f"{family}.{own}") for key, own in _NUMBERS.items()}
    settings = {key: value for key, value in settings.items() if value is not None}
    embedding = file.shapes.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{source}: missing token_embd.weight. Fetch the file again")
    if file.metadata.get(f"{family}.expert_count"):
        raise UnsupportedModel(f"{source}: a mixture of experts is not supported")
    return settings | {
        "architectures": [FAMILIES[family].architecture],
        "vocab_size": embedding[0],
        "attention_bias": "blk.0.attn_q.bias" in file.shapes,
        "tie_word_embeddings": "lm_head.weight" not in names,
        "rope_parameters": _rope(file, family, settings, source),
    }


def _rope(file: GGUFFile, family: str, settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    theta = float(file.metadata.get(f"{family}.rope.freq_base", 10_000.0))
    parameters: dict[str, Any] = {"rope_theta": theta}
    kind = file.metadata.get(f"{family}.rope.scaling.type", "none")
    if kind == "linear":
        parameters |= {"rope_type": kind, "factor": file.metadata.get(f"{family}.rope.scaling.factor")}
    elif kind != "none":
        raise UnsupportedModel(f"{source}: the rope type {kind!r} is not supported in GGUF files")
    rotated = file.metadata.get(f"{family}.rope.dimension_count")
    head_dim = settings.get("head_dim") or settings.get("hidden_size", 0) // settings.get("num_attention_heads", 1)
    if rotated is not None and rotated != head_dim:
        raise UnsupportedModel(f"{source}: rope over {rotated} of {head_dim} dimensions is not supported")
    if _ROPE_FACTORS in file.shapes:
        scaling = find_scaling(file.read(_ROPE_FACTORS), theta, source)
        if scaling is not None:
            parameters |= {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
    return parameters


def _eos_ids(file: GGUFFile) -> frozenset[int]:
    ids = (file.metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom"))
    return frozenset(token for token in ids if token is not None)
