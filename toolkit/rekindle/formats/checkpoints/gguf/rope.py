"""Conversion of a file's rope metadata to "rope_parameters" of a `config.json`."""

import math
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.rope_factors import find_scaling

_FACTORS = "rope_freqs.weight"
_NO_ROTATION = 1e20
"""A divisor above this number stands for a pair without a rotation."""
_LONG_AND_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")


def rope_parameters(metadata: FileMetadata, source: str, *, truncated: bool = True) -> dict[str, Any]:
    """Return the "rope_parameters" setting of a `config.json`.

    Args:
        metadata: the file's metadata.
        source: path of the file, for error messages.
        truncated: whether the YaRN ramp is rounded to whole pairs.

    Raises:
        UnsupportedModel: the kind of rope is not implemented.
        CheckpointError: a number is wrong.
    """
    keys, head_dim = metadata.keys, metadata.head_dim
    theta, dims = keys.number("rope.freq_base", 10_000.0), keys.size("rope.dimension_count", head_dim)
    if dims > head_dim:
        raise keys.wrong("rope.dimension_count", f"must be at most {head_dim}, the size of a head", dims)
    # Round the quotient up, because the integer part of `head_dim * (dims / head_dim)` may be less than dims.
    # In latent attention, the rotary part of a head has a separate size and is completely rotary.
    rotary_factor = 1.0 if metadata.latent or dims == head_dim else math.nextafter(dims / head_dim, math.inf)
    return {"rope_theta": theta, "partial_rotary_factor": rotary_factor} | _scaling(metadata, theta, source, truncated)


def _scaling(metadata: FileMetadata, theta: float, source: str, truncated: bool) -> dict[str, Any]:
    keys, shapes = metadata.keys, metadata.file.shapes
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    if any(name in shapes for name in _LONG_AND_SHORT) or kind == "longrope":
        return _longrope(metadata, source)
    if _FACTORS in shapes:
        return _by_factors(metadata, theta, source)
    if kind == "yarn":
        return _yarn(metadata, factor) if truncated else _yarn(metadata, factor) | {"truncate": False}
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{source}: the rope type {kind!r} is not supported in GGUF files")
    return {} if kind == "none" or factor == 1 else {"rope_type": "linear", "factor": factor}


def _yarn(metadata: FileMetadata, factor: float) -> dict[str, Any]:
    keys = metadata.keys
    context = keys.size("rope.scaling.original_context_length", keys.size("context_length"))
    parameters = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": context,
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    growth = keys.number("attention.temperature_scale", 0.0)
    if (metadata.latent or growth) and (multiplier := keys.number("rope.scaling.yarn_log_multiplier", 0.0)):
        scale = round(10 * multiplier, 6) if metadata.latent else multiplier  # DeepSeek's files store a tenth of it
        parameters |= {"mscale": scale, "mscale_all_dim": scale}  # and no "mscale"
    if growth:
        parameters |= {"llama_4_scaling_beta": growth}
    attention = keys.number_or_none("rope.scaling.yarn_attn_factor")
    return parameters if attention is None else parameters | {"attention_factor": attention}


def _longrope(metadata: FileMetadata, source: str) -> dict[str, Any]:
    keys, file = metadata.keys, metadata.file
    if missing := [name for name in _LONG_AND_SHORT if name not in file.shapes]:
        raise CheckpointError(f"{source}: missing {', '.join(missing)}, which its rope needs. Fetch the file again")
    long, short = ([float(factor) for factor in np.asarray(file.read(name))] for name in _LONG_AND_SHORT)
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": keys.size("rope.scaling.original_context_length"),
        "attention_factor": keys.number_or_none("rope.scaling.attn_factor"),
    }


def _by_factors(metadata: FileMetadata, theta: float, source: str) -> dict[str, Any]:
    """Return the scaling with the divisors of frequencies in the file: Llama 3's, or a proportional rope."""
    factors = np.asarray(metadata.file.read(_FACTORS))
    if (factors > _NO_ROTATION).any():
        share = (np.count_nonzero(factors <= _NO_ROTATION)) / len(factors)
        return {"rope_type": "proportional", "partial_rotary_factor": share}
    scaling = find_scaling(factors, theta, source)
    if scaling is None:
        return {}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context,
    }
