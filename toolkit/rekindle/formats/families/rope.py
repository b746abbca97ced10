"""Readers of rotary embeddings in a `config.json`: newer files have "rope_parameters", older ones separate keys."""

import math
from dataclasses import replace

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import Rope
from rekindle.core.models.config.scaling import (
    BaseScaling,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Scaling,
    YarnScaling,
)
from rekindle.formats.families.keys import Keys


def rope_of(keys: Keys, head_dim: int, theta: float = 10_000.0, share: float = 1.0) -> Rope:
    """Read the common rope of all layers.

    Args:
        keys: the config.
        head_dim: the head size of queries and keys.
        theta: the default base of the frequencies.
        share: the default rotary fraction of a head.

    Raises:
        UnsupportedModel: the rope's type is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    name = "rope_parameters" if keys.get("rope_parameters") else "rope_scaling"
    return _rope(keys.below(name), keys, head_dim, theta, share)


def ropes_of(keys: Keys, head_dim: int, theta: float, local: str, local_theta: float) -> tuple[Rope, Rope]:
    """Read the two ropes of a model with a separate, unscaled rope in its windowed layers.

    Args:
        keys: the config.
        head_dim: the head size of queries and keys.
        theta: the default base of layers with full attention.
        local: the older key for the base of windowed layers.
        local_theta: the default base of windowed layers.

    Returns:
        The rope of layers with full attention, and the rope of windowed layers.

    Raises:
        UnsupportedModel: a rope's type is not implemented.
        CheckpointError: a number is missing or invalid.
    """
    both = ropes_by_kind(keys, head_dim, theta, local_theta)
    if both is None:
        return rope_of(keys, head_dim, theta), Rope(keys.number(local, local_theta))
    keys.get(local)
    return both


def ropes_by_kind(keys: Keys, head_dim: int, theta: float, local_theta: float) -> tuple[Rope, Rope] | None:
    """Read the ropes by kind of layer in newer configs; see `ropes_of`. Return None if the config has one rope."""
    both = keys.below("rope_parameters")
    if not both.has("full_attention"):
        return None
    full, sliding = both.below("full_attention"), both.below("sliding_attention")
    return _rope(full, keys, head_dim, theta, 1.0), _rope(sliding, keys, head_dim, local_theta, 1.0)


def proportional_rope(theta: float, head_dim: int, share: float) -> Rope:
    """Return a rope with the frequencies of whole heads, of which only the first pairs rotate: a share of all."""
    return Rope(theta, pairs=int(share * head_dim) // 2)


def without_scaling(rope: Rope) -> Rope:
    """Return a rope without its scaling."""
    return replace(rope, scaling=None)


def _rope(rope: Keys, keys: Keys, head_dim: int, theta: float, share: float) -> Rope:
    theta = rope.number("rope_theta", keys.number("rope_theta", theta))
    share = rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", share))
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling = None if kind == "proportional" else _scaling(kind, rope, keys)
    rope.get("finetuned")  # the origin of the model
    for of_sections in ("mrope_section", "mrope_interleaved"):
        rope.get(of_sections)  # text has the same position in each section
    for key in rope.unread():
        raise UnsupportedModel(f"{rope.source}: {key} is not supported in a rope of type {kind!r}")
    if kind == "proportional":
        return proportional_rope(theta, head_dim, share)
    dims = int(head_dim * share)
    return Rope(theta, scaling, None if dims == head_dim else dims)


def _scaling(kind: str, rope: Keys, keys: Keys) -> Scaling | None:
    match kind:
        case "default" | "mrope":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "dynamic" if rope.get("alpha") is not None:
            for unused in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
                rope.get(unused)
            return BaseScaling(rope.number("alpha"))
        case "dynamic":
            return DynamicScaling(rope.number("factor"), keys.size("max_position_embeddings"))
        case "longrope" | "su":
            return _long(rope, keys)
        case "llama3":
            return Llama3Scaling(
                rope.number("factor"),
                rope.number("low_freq_factor"),
                rope.number("high_freq_factor"),
                rope.size("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(rope, keys)
    raise UnsupportedModel(f"{rope.source}: the rope type {kind!r} is not supported")


def _yarn(rope: Keys, keys: Keys) -> YarnScaling:
    context = rope.size("original_max_position_embeddings", keys.size("max_position_embeddings"))
    factor = rope.number("factor", keys.size("max_position_embeddings") / context)
    rotary, of_all = rope.number_or_none("mscale"), rope.number_or_none("mscale_all_dim")
    default = mscale(factor, rotary) / mscale(factor, of_all) if rotary and of_all else mscale(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_context=context,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", default),
    )


def _long(rope: Keys, keys: Keys) -> LongScaling:
    whole = keys.size("max_position_embeddings")
    context = rope.size("original_max_position_embeddings", keys.get("original_max_position_embeddings", whole))
    factor = rope.number("factor", whole / context)
    default = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0
    # Rounded to the precision of their use, so that a GGUF file gives the same model.
    short, long = (tuple(map(_single, rope.numbers(name))) for name in ("short_factor", "long_factor"))
    long_factor = rope.number_or_none("long_mscale")
    of_all = _single(rope.number("short_mscale", rope.number("attention_factor", default)))
    of_long = None if long_factor is None else _single(long_factor)
    return LongScaling(short, long, context, of_all, None if of_long == of_all else of_long)


def _single(number: float) -> float:
    return float(np.float32(number))


def mscale(factor: float, scale: float | None) -> float:
    """Return YaRN's attention factor for a scaling factor: 0.1 * scale * ln(factor) + 1."""
    return 0.1 * (scale or 1.0) * math.log(factor) + 1.0 if factor > 1 else 1.0
