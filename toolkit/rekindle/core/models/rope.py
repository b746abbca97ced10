"""Rotary position embedding: the rotation of each pair of a head's elements by the token's position."""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.models.config import AttentionConfig, QueryGrowth, Rope
from rekindle.core.models.config.scaling import (
    BaseScaling,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
)


class Positions(NamedTuple):
    """The positions of tokens, as used by the attention of some layers.

    Attributes:
        cos, sin: the cosines and sines of each token's pairs, (tokens, pairs) float32.
        growth: the factor of each token's queries, (tokens,) float32; None for 1.
        bias: the summands of scores by distance, see `distances.summands_of`; None for none.
    """

    cos: jax.Array
    sin: jax.Array
    growth: jax.Array | None
    bias: jax.Array | None = None


PositionKey = tuple[Rope | None, int, QueryGrowth | None]
"""The parts of an attention config that determine its `Positions`."""


def position_key(attention: AttentionConfig) -> PositionKey:
    """Return the parts of a config that determine its `Positions`."""
    return attention.rope, attention.rotary_dims, attention.growth


def positions_of(key: PositionKey, positions: jax.Array, lengths: jax.Array) -> Positions:
    """Compute the positions for attention; `positions` and `lengths` as in `compute_cos_sin`."""
    rope, rotary_dims, growth = key
    cos, sin = compute_cos_sin(rope, positions, lengths, rotary_dims)
    if growth is None:
        return Positions(cos, sin, None)
    steps = jnp.floor((positions + growth.offset).astype(jnp.float32) / growth.period)
    return Positions(cos, sin, 1 + growth.rate * jnp.log1p(steps))


def compute_cos_sin(
    rope: Rope | None, positions: jax.Array, lengths: jax.Array, head_dim: int
) -> tuple[jax.Array, jax.Array]:
    """Compute the cosines and sines of each token's pairs, (tokens, pairs) float32; no pairs without a rope.

    Args:
        rope: the rotary embedding; None for none.
        positions: (tokens,) int32; or (3, tokens), for a rope with `axes`.
        lengths: (tokens,) int32, the length of each token's request, for long-context ropes.
        head_dim: the size of the rotary part of heads, unless the rope has `dims`.
    """
    if rope is None:
        none = jnp.zeros((positions.shape[-1], 0), jnp.float32)
        return none, none
    by_pair, times = (
        (positions[:, None], positions) if positions.ndim == 1 else (_by_pair(rope, positions), positions[0])
    )
    angles = by_pair.astype(jnp.float32) * _frequencies(rope, times, lengths, head_dim)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    factor: float | jax.Array = 1.0
    if isinstance(rope.scaling, YarnScaling | LongScaling):
        factor = rope.scaling.attention_factor
    if isinstance(rope.scaling, LongScaling) and rope.scaling.long_attention_factor is not None:
        is_long = lengths > rope.scaling.original_context
        factor = jnp.where(is_long, rope.scaling.long_attention_factor, rope.scaling.attention_factor)[:, None]
    return (cos, sin) if isinstance(factor, float) and factor == 1 else (cos * factor, sin * factor)


def _by_pair(rope: Rope, positions: jax.Array) -> jax.Array:
    """Return the coordinate of each token for each pair, (tokens, pairs), of the coordinates (3, tokens)."""
    assert rope.axes is not None, "coordinates for a rope without axes"
    return positions[np.array(rope.axes)].T


def _frequencies(rope: Rope, positions: jax.Array, lengths: jax.Array, head_dim: int) -> jax.Array:
    """Return the angle per position of each pair, (tokens or 1, pairs) float32, in radians."""
    match rope.scaling:
        case LongScaling() as scaling:
            plain = rope_frequencies(replace(rope, scaling=None), head_dim)
            short, long = (plain / np.asarray(factors, np.float32) for factors in (scaling.short, scaling.long))
            return jnp.where((lengths > scaling.original_context)[:, None], long[None], short[None])
        case DynamicScaling(factor, context):
            # A decode row is rotated like the last token of a prompt of its length.
            longest = jnp.maximum(jnp.maximum(lengths, positions + 1), context).astype(jnp.float32)
            plain = rope_frequencies(replace(rope, scaling=None), head_dim)
            dims = 2 * len(plain)
            growth = (factor * longest / context - (factor - 1)) ** (dims / (dims - 2))
            powers = np.arange(0, dims, 2, dtype=np.float32) / dims
            return jnp.asarray(plain)[None] * growth[:, None] ** -powers[None]
    return jnp.asarray(rope_frequencies(rope, head_dim))[None]


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate the pairs (i, i + pairs) of (tokens, heads, 2 * pairs) by each token's angles, (tokens, pairs)."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotate_start(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate the pairs at the start of each head of (tokens, heads, head_dim); the rest of it does not change."""
    dims = 2 * cos.shape[1]
    if dims == x.shape[-1]:
        return rotate(x, cos, sin)
    return jnp.concatenate([rotate(x[..., :dims], cos, sin), x[..., dims:]], axis=-1)


def rope_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Return the angle per position of each pair, (pairs,) float32, in radians. Long-context scaling is ignored."""
    dims = head_dim if rope.dims is None else rope.dims
    theta = rope.theta
    if isinstance(rope.scaling, BaseScaling):
        theta *= rope.scaling.factor ** (dims / (dims - 2))
    # In float32 like the published code: scores amplify a difference in the last bits.
    frequencies = 1 / np.float32(theta) ** (np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims))
    match rope.scaling:
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case Llama3Scaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            frequencies = _yarn(frequencies, scaling, theta, dims)
    if rope.pairs is not None:
        frequencies[rope.pairs :] = 0.0
    return frequencies.astype(np.float32)


def _llama3(frequencies: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    rotations = scaling.original_context * frequencies / (2 * math.pi)
    # Equal factors, as in Llama 4's files, leave no pairs between.
    span = max(scaling.high_freq_factor - scaling.low_freq_factor, 1e-9)
    weight = (rotations - scaling.low_freq_factor) / span
    weight = np.clip(weight, 0.0, 1.0)
    result: np.ndarray = frequencies * (weight + (1 - weight) / scaling.factor)
    return result


def _yarn(frequencies: np.ndarray, scaling: YarnScaling, theta: float, dims: int) -> np.ndarray:
    """Interpolate between pairs by their index, with rounded ends of the ramp, as in the authors' code."""

    def pair(rotations: float) -> float:
        """Return the index of the pair with this number of rotations within the original context."""
        return dims * math.log(scaling.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    ramp = (np.arange(dims // 2, dtype=np.float64) - first) / max(last - first, 0.001)
    weight = 1 - np.clip(ramp, 0.0, 1.0)
    result: np.ndarray = frequencies * (weight + (1 - weight) / scaling.factor)
    return result
