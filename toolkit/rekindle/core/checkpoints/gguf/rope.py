"""The rope of a file's metadata, in the form of a `config.json`."""

import math
from typing import Any

import numpy as np

from rekindle.core.checkpoints.gguf.architecture import FileMetadata
from rekindle.core.checkpoints.gguf.rope_factors import find_scaling
from rekindle.core.errors import CheckpointError, UnsupportedModel

_FACTORS = "rope_freqs.weight"
_LONG_AND_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")


def rope_parameters(said: FileMetadata, source: str, *, truncated: bool = True) -> dict[str, Any]:
    """Return "rope_parameters" of a `config.json`.

    Args:
        truncated: whether the ramp of YaRN begins and ends at whole pairs.

    Raises:
        UnsupportedModel: the kind of rope is not implemented.
        CheckpointError: a number is wrong.
    """
    keys, head_dim = said.keys, said.head_dim
    theta, dims = keys.number("rope.freq_base", 10_000.0), keys.size("rope.dimension_count", head_dim)
    if dims > head_dim:
        raise keys.wrong("rope.dimension_count", f"must be at most {head_dim}, the numbers of a head", dims)
    # The next larger quotient, because the whole part of `head_dim * (dims / head_dim)` may be less than dims.
    # Of latents' heads the numbers that turn have a size of their own, and all of them turn.
    share = 1.0 if said.latent or dims == head_dim else math.nextafter(dims / head_dim, math.inf)
    return {"rope_theta": theta, "partial_rotary_factor": share} | _scaling(said, theta, source, truncated)


def _scaling(said: FileMetadata, theta: float, source: str, truncated: bool) -> dict[str, Any]:
    keys, shapes = said.keys, said.file.shapes
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    if any(name in shapes for name in _LONG_AND_SHORT) or kind == "longrope":
        return _long(said, source)
    if _FACTORS in shapes:
        return _llama3(said, theta, source)
    if kind == "yarn":
        return _yarn(said, factor) if truncated else _yarn(said, factor) | {"truncate": False}
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{source}: the rope type {kind!r} is not supported in GGUF files")
    return {} if kind == "none" or factor == 1 else {"rope_type": "linear", "factor": factor}


def _yarn(said: FileMetadata, factor: float) -> dict[str, Any]:
    keys = said.keys
    context = keys.size("rope.scaling.original_context_length", keys.size("context_length"))
    parameters = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": context,
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    if said.latent and (multiplier := keys.number("rope.scaling.yarn_log_multiplier", 0.0)):
        of_all = round(10 * multiplier, 6)  # the file has a tenth of it, and says nothing of "mscale"
        parameters |= {"mscale": of_all, "mscale_all_dim": of_all}
    attention = keys.number_or_none("rope.scaling.yarn_attn_factor")
    return parameters if attention is None else parameters | {"attention_factor": attention}


def _long(said: FileMetadata, source: str) -> dict[str, Any]:
    keys, file = said.keys, said.file
    if missing := [name for name in _LONG_AND_SHORT if name not in file.shapes]:
        raise CheckpointError(f"{source}: missing {', '.join(missing)}, which its rope needs. Fetch the file again")
    long, short = ([float(each) for each in np.asarray(file.read(name))] for name in _LONG_AND_SHORT)
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": keys.size("rope.scaling.original_context_length"),
        "attention_factor": keys.number_or_none("rope.scaling.attn_factor"),
    }


def _llama3(said: FileMetadata, theta: float, source: str) -> dict[str, Any]:
    scaling = find_scaling(np.asarray(said.file.read(_FACTORS)), theta, source)
    if scaling is None:
        return {}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context,
    }
