"""Log-probabilities, computed in the step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 128

GROUP = 64
"""Prompt tokens that are scored at a time: the logits of a whole chunk would not fit beside a model."""


def score_columns(most: int) -> int:
    """Return the width of a packed score with room for `most` alternatives."""
    return 2 + 2 * most


def score(logits: jax.Array, tokens: jax.Array, most: int) -> jax.Array:
    """Compute how likely each row's token is, and which tokens are likeliest.

    Args:
        logits: (rows, vocabulary) float32.
        tokens: (rows,) int32.
        most: how many of the likeliest tokens to return.

    Returns:
        (rows, score_columns(most)) int32: the bits of the token's log-probability, its rank (1 is the likeliest), the
        likeliest ids, and the bits of their log-probabilities.
    """
    largest = logits.max(-1, keepdims=True)
    total = jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
    own = jnp.take_along_axis(logits, tokens[:, None], axis=1)
    rank = 1 + (logits > own).sum(-1, dtype=jnp.int32)
    values, ids = _top_k(logits, most)
    own, values = own - largest, values - largest  # first: the total is small, and rounding would lose it
    packed = [_bits(own - total), rank[:, None], ids, _bits(values - total)]
    return jnp.concatenate(packed, axis=1)


def score_if(wanted: jax.Array, logits_of: Callable[[], jax.Array], tokens: jax.Array, most: int) -> jax.Array:
    """Return `score` of what `logits_of` returns if any of `wanted`, (rows,) bool, is true, else zeros."""
    scores: jax.Array = lax.cond(
        wanted.any(),
        lambda: score(logits_of(), tokens, most),
        lambda: jnp.zeros((len(tokens), score_columns(most)), jnp.int32),
    )
    return scores


def score_prompt(
    hidden: jax.Array, targets: jax.Array, logits_of: Callable[[jax.Array], jax.Array], most: int
) -> jax.Array:
    """Compute how likely the known next token is at each position of a prompt.

    Args:
        hidden: (tokens, hidden) float32.
        targets: (tokens,) int32, the next token of each, or -1 if it is not to be scored.
        logits_of: maps hidden states to logits.
        most: how many of the likeliest tokens to return.

    Returns:
        (tokens, score_columns(most)) int32, packed as by `score`; zeros in groups where nothing is to be scored.
    """
    if not len(hidden):
        return jnp.zeros((0, score_columns(most)), jnp.int32)
    padding = -len(hidden) % GROUP
    groups = (
        jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, GROUP, hidden.shape[1]),
        jnp.pad(targets, (0, padding), constant_values=-1).reshape(-1, GROUP),
    )

    def one(group: tuple[jax.Array, jax.Array]) -> jax.Array:
        group_hidden, group_targets = group
        group_scores: jax.Array = lax.cond(
            (group_targets >= 0).any(),
            lambda: score(logits_of(group_hidden), jnp.maximum(group_targets, 0), most),
            lambda: jnp.zeros((GROUP, score_columns(most)), jnp.int32),
        )
        return group_scores

    scores: jax.Array = lax.map(one, groups)
    return scores.reshape(-1, score_columns(most))[: len(hidden)]


def _top_k(values: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return what `lax.top_k` does, faster: the `count` largest values lie in the blocks with the largest maxima."""
    blocks = _in_blocks(values, -jnp.inf)
    _, block = lax.top_k(blocks.max(-1), min(count, blocks.shape[1]))
    block = jnp.sort(block, axis=-1)  # so that equal values come in the order of their ids
    candidates = jnp.take_along_axis(blocks, block[:, :, None], axis=1)
    best, place = lax.top_k(candidates.reshape(len(values), -1), count)
    ids = jnp.take_along_axis(block, place // blocks.shape[2], axis=1) * blocks.shape[2] + place % blocks.shape[2]
    return best, ids


def _in_blocks(values: jax.Array, padding: float) -> jax.Array:
    """Reshape (rows, columns) to (rows, blocks, BLOCK), with padding at the end."""
    padded = jnp.pad(values, ((0, 0), (0, -values.shape[1] % BLOCK)), constant_values=padding)
    return padded.reshape(len(values), -1, BLOCK)


def _bits(values: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(values, jnp.int32)
