"""Log-probabilities, computed inside the step."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.device.sampling.columns import of_tokens
from rekindle_kernels.api import Implementation
from rekindle_kernels.sampling import argmax, count_above, mass

BLOCK = 128
"""Tokens in a block of the blockwise top-k."""

GROUP = 64
"""Prompt tokens scored at a time: the logits of a whole chunk would not fit in memory next to a model."""


def score_columns(max_logprobs: int) -> int:
    """Return the width of a packed score with room for `max_logprobs` alternatives."""
    return 2 + 2 * max_logprobs


class ScoredLogits(NamedTuple):
    """The logits of rows to score.

    Attributes:
        columns: (vocabulary, rows) float32.
        largest: (rows,) float32, a number near each row's largest logit and not below it.
        candidates: (vocabulary, rows) float32, the logits that the likeliest tokens come from: the columns, or minus
            infinity in place of some.
    """

    columns: jax.Array
    largest: jax.Array
    candidates: jax.Array


def score(
    logits: ScoredLogits, tokens: jax.Array, max_logprobs: int, implementation: Implementation = "xla"
) -> jax.Array:
    """Compute the log-probability and rank of each row's token, and the likeliest tokens.

    Args:
        logits: the logits.
        tokens: (rows,) int32.
        max_logprobs: the number of likeliest tokens to return.
        implementation: the kernel implementation.

    Returns:
        (rows, score_columns(most)) int32: the bits of the token's log-probability, its rank (1 is the likeliest), the
        likeliest ids, and the bits of their log-probabilities.
    """
    columns, largest, candidates = logits
    logit, no_bound = of_tokens(columns, tokens), jnp.full_like(largest, -jnp.inf)
    total = jnp.log(mass(columns, largest, jnp.ones_like(largest), no_bound, implementation=implementation))
    rank = 1 + count_above(columns, logit, implementation=implementation)
    values, ids = _top_k(candidates, max_logprobs)
    # Subtract the largest logit first: subtracted from a large logit, the small total would be lost to rounding.
    logit, values = logit - largest, values - largest[:, None]
    packed = [_bits(logit - total)[:, None], rank[:, None], ids, _bits(values - total[:, None])]
    return jnp.concatenate(packed, axis=1)


def score_if(
    mask: jax.Array,
    logits_of: Callable[[], ScoredLogits],
    tokens: jax.Array,
    max_logprobs: int,
    implementation: Implementation = "xla",
) -> jax.Array:
    """Return `score` of the logits from `logits_of`, or zeros if no entry of `mask` is true.

    Args:
        mask: (rows,) bool.
        logits_of: returns the logits.
        tokens: see `score`.
        max_logprobs: see `score`.
        implementation: see `score`.
    """
    scores: jax.Array = lax.cond(
        mask.any(),
        lambda: score(logits_of(), tokens, max_logprobs, implementation),
        lambda: jnp.zeros((len(tokens), score_columns(max_logprobs)), jnp.int32),
    )
    return scores


def score_prompt(
    hidden: jax.Array,
    targets: jax.Array,
    columns_of: Callable[[jax.Array, jax.Array | None], jax.Array],
    max_logprobs: int,
    implementation: Implementation = "xla",
    anywhere: Callable[[jax.Array], jax.Array] = lambda mask: mask,
    adapters: jax.Array | None = None,
) -> jax.Array:
    """Score the next prompt token at each position of a prompt.

    Args:
        hidden: (tokens, hidden) float32.
        targets: (tokens,) int32, the next token of each, or -1 for no score.
        columns_of: maps hidden states, and their tokens' adapters, to logits, (vocabulary, tokens) float32.
        max_logprobs: the number of likeliest tokens to return.
        implementation: the kernel implementation.
        anywhere: maps booleans to their logical OR over all devices of the program, since `columns_of` is collective.
        adapters: (tokens,) int32, ascending; None for none.

    Returns:
        (tokens, score_columns(most)) int32, packed by `score`; zeros in groups without targets.
    """
    if not len(hidden):
        return jnp.zeros((0, score_columns(max_logprobs)), jnp.int32)
    padding = -len(hidden) % GROUP
    groups = (
        jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, GROUP, hidden.shape[1]),
        jnp.pad(targets, (0, padding), constant_values=-1).reshape(-1, GROUP),
        None if adapters is None else jnp.pad(adapters, (0, padding), mode="edge").reshape(-1, GROUP),
    )

    def one(group: tuple[jax.Array, jax.Array, jax.Array | None]) -> jax.Array:
        group_hidden, group_targets, group_adapters = group

        def logits() -> ScoredLogits:
            columns = columns_of(group_hidden, group_adapters)
            return ScoredLogits(columns, of_tokens(columns, argmax(columns, implementation=implementation)), columns)

        return score_if(
            anywhere(group_targets >= 0), logits, jnp.maximum(group_targets, 0), max_logprobs, implementation
        )

    # Without a target, no group is visited: a GPU would wait for its host at each.
    nothing = jnp.zeros((len(groups[0]), GROUP, score_columns(max_logprobs)), jnp.int32)
    scores: jax.Array = lax.cond(anywhere(targets >= 0).any(), lambda: lax.map(one, groups), lambda: nothing)
    return scores.reshape(-1, score_columns(max_logprobs))[: len(hidden)]


def _top_k(columns: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return `lax.top_k` of each column, but faster: the largest values lie in the blocks with the largest maxima."""
    padded = jnp.pad(columns, ((0, -len(columns) % BLOCK), (0, 0)), constant_values=-jnp.inf)
    blocks = padded.reshape(-1, BLOCK, columns.shape[1])
    _, block = lax.top_k(blocks.max(1).T, min(count, len(blocks)))
    block = jnp.sort(block, axis=-1)  # equal values in the order of their ids
    candidates = jnp.take_along_axis(blocks, block.T[:, None], axis=0)
    best, place = lax.top_k(jnp.moveaxis(candidates, 2, 0).reshape(columns.shape[1], -1), count)
    ids = jnp.take_along_axis(block, place // BLOCK, axis=1) * BLOCK + place % BLOCK
    return best, ids


def _bits(values: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(values, jnp.int32)
