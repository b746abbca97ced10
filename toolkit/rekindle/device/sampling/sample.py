"""Sampling tokens from logits: greedy and seeded draws in one batch, without a sort.

The order of application is that of transformers: logit bias, repetition, frequency and presence penalty, bad words, min
tokens, allowed tokens (all in `adjustments`), a logits processor of the user's own, then temperature, top-k, top-p,
min-p, then the draw.

All passes run over (vocabulary, rows), the order in which the last product leaves the logits. A row's numbers along the
other axis would be transposed first, which takes XLA's CPU backend several times as long as a pass.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.device.sampling.adjustments import Adjustments, adjust
from rekindle.device.sampling.columns import BLOCK, in_blocks, of_tokens
from rekindle.device.sampling.distribution import deepest_of_min_p, deepest_of_top_k, drawn_from
from rekindle.device.sampling.noise import gumbel
from rekindle.device.sampling.processing import LogitsProcessor
from rekindle.device.sampling.rows import OF_SAMPLED, PROCESSED, SamplingRows
from rekindle.device.sampling.scores import score_columns, score_if
from rekindle_kernels.api import Implementation
from rekindle_kernels.layers import mass

SMALLEST = 2.0**-126
"""The number that comes after 0: smaller ones are taken for 0."""


def sample(
    logits: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    adjustments: Adjustments,
    owners: jax.Array,
    most: int,
    processor: LogitsProcessor | None = None,
    implementation: Implementation = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Choose one token for each row, and score it for the rows that want it.

    A row's token depends on its logits, its parameters and (seed, position), and on nothing else in the batch. A batch
    of greedy rows without adjustments and scores costs only the argmax.

    Args:
        logits: (rows, vocabulary) float32.
        positions: (rows,) int32, the token's position in its request.
        adjustments: of all slots.
        owners: (rows,) int32, the slot of each row.
        most: how many of the likeliest tokens there is room for in a score.
        processor: what follows the adjustments in rows that want it, static.
        implementation: of the kernels.

    Returns:
        (rows,) int32 token ids, and their scores, packed as by `scores.score`, meaningless for rows that want none.
    """
    drawn, adjusted = rows.temperature > 0, rows.adjusted > 0
    of_changed = (rows.scored == OF_SAMPLED) & (drawn | adjusted)
    columns = logits.T
    greedy = argmax(columns)

    def change() -> tuple[jax.Array, jax.Array]:
        changed = adjust(logits, rows, positions, adjustments, owners)
        if processor is not None:
            wanted = (rows.adjusted == PROCESSED)[:, None]
            changed = jnp.where(wanted, processor(changed, positions, adjustments, owners), changed)
        final = jnp.where(adjusted[None], changed.T, columns)
        return final, argmax(final)

    def choose() -> tuple[jax.Array, jax.Array]:
        final, best = lax.cond(adjusted.any(), change, lambda: (columns, greedy))
        tokens = lax.cond(
            drawn.any(),
            lambda: jnp.where(drawn, _draw(final, best, rows, positions, implementation), best),
            lambda: best,
        )
        scores = score_if(
            of_changed, lambda: drawn_from(final, rows, tokens, implementation), tokens, most, implementation
        )
        return tokens, scores

    unscored = jnp.zeros((len(logits), score_columns(most)), jnp.int32)
    tokens, scores = lax.cond((drawn | adjusted).any(), choose, lambda: (greedy, unscored))
    of_model = score_if((rows.scored > 0) & ~of_changed, lambda: columns, tokens, most, implementation)
    return tokens, jnp.where(of_changed[:, None], scores, of_model)


def argmax(columns: jax.Array) -> jax.Array:
    """Return the smallest index of each column's maximum.

    Args:
        columns: (length, rows) of numbers.

    Returns:
        (rows,) int32.
    """
    largest: jax.Array = lax.platform_dependent(columns, cpu=_argmax_of_blocks, default=_first_largest)
    return largest


def _argmax_of_blocks(columns: jax.Array) -> jax.Array:
    """Find the block that has the maximum, and then its place in it: one pass, which writes nothing of its size."""
    blocks = in_blocks(columns, -jnp.inf)
    block = _first_largest(blocks.max(1))
    place = _first_largest(jnp.take_along_axis(blocks, block[None, None], axis=0)[0])
    return jnp.minimum(block * BLOCK + place, len(columns) - 1)  # what is not a number is nowhere the largest


def _first_largest(columns: jax.Array) -> jax.Array:
    places = lax.broadcasted_iota(jnp.int32, columns.shape, 0)
    return jnp.where(columns == columns.max(0, keepdims=True), places, len(columns) - 1).min(0)


def _draw(
    columns: jax.Array, best: jax.Array, rows: SamplingRows, positions: jax.Array, implementation: Implementation
) -> jax.Array:
    """Draw by the Gumbel-max trick: the token with the largest sum of logit / temperature and noise.

    Where the same noise meets logits that are a little different, as those of another batch size are, the token seldom
    changes: with a probability of at most 2d / (1 + d) for softmaxes of total variation distance d. No method that
    knows only one of the two promises less (Bavarian et al., 2020, arXiv:1612.01041).

    Args:
        columns: (vocabulary, rows) float32, the logits.
        best: (rows,) int32, the likeliest tokens.
    """
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    largest = of_tokens(columns, best)
    bound = jnp.minimum(deepest_of_top_k(columns, largest, rows.top_k), deepest_of_min_p(temperature, rows.min_p))
    depth = largest[None] - columns
    noise = gumbel(rows.seed_low, rows.seed_high, positions, len(columns))
    scores = jnp.where(depth <= bound[None], noise - depth / temperature[None], -jnp.inf)
    token, all_of_it = argmax(scores), (rows.temperature <= 0) | (rows.top_p >= 1)

    def mass_from(least: jax.Array) -> jax.Array:
        return mass(columns, largest, temperature, least, implementation=implementation)

    drawn: jax.Array = lax.cond(
        all_of_it.all(),
        lambda: token,
        lambda: _draw_nucleus(columns, mass_from, rows.top_p, (scores, token, all_of_it)),
    )
    return drawn


_Search = tuple[jax.Array, jax.Array, jax.Array]
"""The scores (vocabulary, rows), minus infinity for tokens that are out; the best tokens; whether they are settled."""


def _draw_nucleus(
    columns: jax.Array, mass_from: Callable[[jax.Array], jax.Array], top_p: jax.Array, search: _Search
) -> jax.Array:
    """Draw from the tokens that top-p keeps, without computing that set.

    A token is in the nucleus if the tokens likelier than it have less than top-p of the mass. If the best one is not,
    the less likely ones are not in it either: the next is the best of those likelier than it, with the same noise. So
    the result is the best token of the nucleus. (The pivots are FlashInfer's, Ye et al., 2025, arXiv:2501.01005, which
    draws anew for each.)

    Args:
        columns: (vocabulary, rows) float32, the logits.
        mass_from: returns the mass of each row's tokens whose logits are not below a bound, (rows,).
    """

    def inside(token: jax.Array) -> jax.Array:
        own = of_tokens(columns, token)
        next_above = jnp.where(jnp.abs(own) < SMALLEST, SMALLEST, jnp.nextafter(own, jnp.inf))
        ahead = mass_from(next_above)
        return (ahead < wanted) | (ahead <= 0)

    def body(search: _Search) -> _Search:
        scores, token, settled = search
        likelier = columns > of_tokens(columns, token)[None]
        scores = jnp.where(settled[None] | likelier, scores, -jnp.inf)
        token = argmax(scores)
        return scores, token, settled | inside(token)

    scores, token, settled = search
    wanted = top_p * mass_from(jnp.where(scores > -jnp.inf, columns, jnp.inf).min(0))
    start = (scores, token, settled | inside(token))
    found: jax.Array = lax.while_loop(lambda search: ~search[2].all(), body, start)[1]
    return found
