"""Metadata of a model for a GGUF file, from its config: the inverse of the reader's settings."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import AttentionConfig, FeedForwardConfig, ModelConfig, Rope
from rekindle.core.models.config.scaling import LinearScaling, Llama3Scaling, LongScaling, YarnScaling
from rekindle.core.models.rope import rope_frequencies
from rekindle.formats.checkpoints.gguf.architecture import Architecture
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.saving.tensors import NewTensor, of_floats

_ALSO: Final = {"mistral": "llama", "olmo3": "olmo2"}
"""Architectures of further families; the reader knows the family by the metadata."""
_COMPARED: Final = frozenset(
    {
        *(
            "arcee",
            "chatglm",
            "cohere2",
            "command-r",
            "ernie4_5",
            "gemma",
            "gemma2",
            "gemma3",
            "glm4",
            "gpt2",
            "granite",
        ),
        *("llama", "nemotron", "olmo", "olmo2", "phi2", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm"),
        "starcoder2",
    }
)
"""Architectures of files with equal logits here and in llama.cpp."""
_WITH_HEADS: Final = frozenset({"nemotron", "olmo2", "phi2", "stablelm"})
"""Architectures of llama.cpp without tied embeddings."""
_ANY_HEAD: Final = 128
"""The size of a head for a comparison of frequencies."""


def architecture_of(config: ModelConfig, source: str) -> Architecture:
    """Return llama.cpp's architecture for a model.

    Raises:
        UnsupportedModel: it has none, or its layers are not all attention and a dense feed-forward layer.
    """
    if config.both_ways:
        raise UnsupportedModel(
            f"{source}: a model that reads texts in both directions is not written as GGUF: write safetensors instead, "
            "to a path without .gguf (--format safetensors)"
        )
    name = _ALSO.get(config.family)
    candidates = (each for each in ARCHITECTURES.values() if each.family == config.family or each.name == name)
    architecture = next(candidates, None)
    if architecture is None:
        raise UnsupportedModel(
            f"{source}: llama.cpp has no architecture for the family {config.family} that is written here: write "
            "safetensors instead, to a path without .gguf (--format safetensors)"
        )
    for layer in config.layers:
        if layer.state is not None or layer.attention is None or not isinstance(layer.feed_forward, FeedForwardConfig):
            what = "states" if layer.state is not None else "experts, or layers without attention or feed-forward,"
            raise UnsupportedModel(
                f"{source}: a model of the family {config.family} with {what} is not written as GGUF: write "
                "safetensors instead, to a path without .gguf (--format safetensors), or quantize a GGUF file of it"
            )
    if architecture.name not in _COMPARED:
        raise UnsupportedModel(
            f"{source}: files of llama.cpp's {architecture.name} are not written, because none was compared with "
            "llama.cpp: write safetensors instead, to a path without .gguf (--format safetensors)"
        )
    return architecture


def check_limits(config: ModelConfig, architecture: Architecture, source: str) -> None:
    """Raise UnsupportedModel for a model that llama.cpp does not open, or computes in another way."""
    name, attention = architecture.name, config.attentions[0]
    has_bias = attention.qkv_bias or attention.out_bias or getattr(config.layers[0].feed_forward, "bias", False)
    limits = {
        "biases": name in ("ernie4_5", "smollm3") and has_bias,
        "an embedding that is its head": name in _WITH_HEADS and config.tied_embeddings,
        "norms of queries and keys": name == "command-r" and attention.head_norm is not None and config.num_layers < 64,
        "a sliding window": name == "phi3" and any(each.window is not None for each in config.attentions),
        "heads whose sizes do not add up to its hidden size": name == "nemotron"
        and attention.heads * attention.head_dim != config.hidden_size,
    }
    if reason := next((limit for limit, is_present in limits.items() if is_present), None):
        raise UnsupportedModel(
            f"{source} has {reason}, and llama.cpp's {name} has none of that: write safetensors instead, to a path "
            "without .gguf (--format safetensors)"
        )


def metadata_of(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the metadata of a dense model by key, without its tokenizer."""
    full = _full(config)
    feed_forward = config.layers[0].feed_forward
    assert isinstance(feed_forward, FeedForwardConfig), "the model is dense"
    keys: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_context,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": feed_forward.width,
        "attention.head_count": full.heads,
        "attention.head_count_kv": full.kv_heads,
        f"attention.layer_norm_{'' if config.norm.centred else 'rms_'}epsilon": float(config.norm.eps),
    }
    if config.positions is None:
        keys |= {"attention.key_length": full.head_dim, "attention.value_length": full.head_dim}
    if full.rope is not None:
        keys |= dict(_rope(full.rope, full.head_dim))
    keys |= dict(_special(config, architecture.name, full))
    return {f"{architecture.name}.{key}": value for key, value in keys.items()}


def rope_tensors(config: ModelConfig) -> list[NewTensor]:
    """Return the tensors with the divisors of rope frequencies, for Llama 3's scaling and LongRoPE."""
    full = _full(config)
    rope = full.rope
    if rope is None or not isinstance(rope.scaling, Llama3Scaling | LongScaling):
        return []
    if isinstance(rope.scaling, LongScaling):
        factors = {"rope_factors_long": rope.scaling.long, "rope_factors_short": rope.scaling.short}
    else:
        dims = rope.dims or full.head_dim
        factors = {
            "rope_freqs": tuple(
                rope_frequencies(Rope(rope.theta), dims) / rope_frequencies(Rope(rope.theta, rope.scaling), dims)
            )
        }
    single = np.dtype(np.float32)
    arrays = {f"{name}.weight": np.array(each, single) for name, each in factors.items()}
    return [of_floats(name, array.shape, single, partial(np.asarray, array)) for name, array in arrays.items()]


def _full(config: ModelConfig) -> AttentionConfig:
    """Return the attention of a layer without a window and with a rope; of the first layer without such a layer."""
    attentions = config.attentions
    return next((each for each in attentions if each.window is None and each.rope is not None), attentions[0])


def _rope(rope: Rope, head_dim: int) -> Iterator[tuple[str, Any]]:
    yield "rope.freq_base", float(rope.theta)
    yield "rope.dimension_count", rope.dims or head_dim
    match rope.scaling:
        case LinearScaling():
            yield "rope.scaling.type", "linear"
            yield "rope.scaling.factor", float(rope.scaling.factor)
        case YarnScaling() as yarn:
            yield "rope.scaling.type", "yarn"
            yield "rope.scaling.factor", float(yarn.factor)
            yield "rope.scaling.original_context_length", yarn.original_context
            yield "rope.scaling.yarn_beta_fast", float(yarn.beta_fast)
            yield "rope.scaling.yarn_beta_slow", float(yarn.beta_slow)
        case LongScaling() as long:
            yield "rope.scaling.original_context_length", long.original_context
            yield "rope.scaling.attn_factor", float(long.attention_factor)


def _special(config: ModelConfig, name: str, full: AttentionConfig) -> Iterator[tuple[str, Any]]:
    """Yield the metadata of some architectures: windows, bounds and factors."""
    windowed = next((each for each in config.attentions if each.window is not None), None)
    if windowed is not None and windowed.window is not None:
        yield "attention.sliding_window", windowed.window
        if windowed.rope is not None and name == "gemma3":
            yield "rope.freq_base_swa", float(windowed.rope.theta)
    if full.soft_cap is not None:
        yield "attn_logit_softcapping", float(full.soft_cap)
    if config.logit_cap is not None:
        yield "final_logit_softcapping", float(config.logit_cap)
    if full.clip is not None:
        yield "attention.clamp_kqv", float(full.clip)
    if name in ("stablelm", "gptneox"):
        yield "use_parallel_residual", config.parallel
    if name == "granite":
        yield "attention.scale", float(full.scale)
        yield "embedding_scale", float(config.embedding_multiplier)
        yield "residual_scale", float(config.residual_multiplier)
        yield "logit_scale", float(1 / config.logit_multiplier)
    if name in ("command-r", "cohere2"):
        yield "logit_scale", float(config.logit_multiplier)


def differences(config: ModelConfig, stored: ModelConfig) -> list[str]:
    """Return the facts of a model, such as "max_context", with another value in the config of its new file.

    Floats are equal within float32's rounding, and two of Llama 3's scalings with equal frequencies are equal.
    """
    names = (each.name for each in fields(config) if each.name not in ("family", "names"))
    return [name for name in names if not _is_same(getattr(config, name), getattr(stored, name))]


def _is_same(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, float):
        return math.isclose(ours, theirs, rel_tol=1e-6)
    if isinstance(ours, tuple):
        return len(ours) == len(theirs) and all(map(_is_same, ours, theirs))
    if isinstance(ours, Rope) and isinstance(ours.scaling, Llama3Scaling) and isinstance(theirs.scaling, Llama3Scaling):
        first, second = (rope_frequencies(rope, _ANY_HEAD) for rope in (ours, theirs))
        return bool(np.allclose(first, second, rtol=1e-4, atol=0)) and ours.dims == theirs.dims
    if is_dataclass(ours):
        return all(_is_same(getattr(ours, each.name), getattr(theirs, each.name)) for each in fields(ours))
    return bool(ours == theirs)
