"""Sampling tokens from logits: greedy and seeded draws in one batch, without a sort.

The order of application is that of transformers: logit bias, repetition, frequency and presence penalty, bad words, min
tokens, allowed tokens (all in `adjustments`), a logits processor of the user's own, a constraint, then temperature,
top-k, top-p, min-p, then the draw. Logits are (vocabulary, rows), as the model's last product leaves them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.device.sampling.adjustments import Adjustments, adjust
from rekindle.core.device.sampling.columns import of_tokens
from rekindle.core.device.sampling.constraints import constrain
from rekindle.core.device.sampling.distribution import drawn_from, least_kept
from rekindle.core.device.sampling.keys import keys_of
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.sampling.rows import CONSTRAINED, OF_SAMPLED, PROCESSED, SamplingRows
from rekindle.core.device.sampling.scores import score_if
from rekindle_kernels.api import Implementation
from rekindle_kernels.sampling import argmax, draw, mass

SMALLEST = 2.0**-126
"""The number that comes after 0: smaller ones are taken for 0."""

NOT_FINITE, NONE_LEFT = -1, -2
"""Instead of a token: logits that are NaN or infinity, and logits that are all minus infinity."""


def sample(
    columns: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    adjustments: Adjustments,
    owners: jax.Array,
    most: int,
    processor: LogitsProcessor | None = None,
    implementation: Implementation = "xla",
    allowed: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Choose one token for each row, and score it for the rows that want it.

    A row's token depends on its logits, its parameters and (seed, position), and on nothing else in the batch. A batch
    of greedy rows without adjustments and scores costs only the argmax.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        positions: (rows,) int32, the token's position in its request.
        adjustments: of all slots.
        owners: (rows,) int32, the slot of each row.
        most: how many of the likeliest tokens there is room for in a score.
        processor: what follows the adjustments in rows that want it, static.
        implementation: of the kernels.
        allowed: (slots, words) int32, what constraints allow, see `constrain`; None if no row has one.

    Returns:
        (rows,) int32 token ids, `NOT_FINITE` or `NONE_LEFT`, and their scores, packed as by `scores.score`, meaningless
        for rows that want none. A constrained row with no token left has any token: its grammar says what was banned.
    """
    drawn, adjusted = rows.temperature > 0, rows.adjusted > 0
    of_changed = (rows.scored == OF_SAMPLED) & (drawn | adjusted)
    greedy = argmax(columns, implementation=implementation)
    largest = of_tokens(columns, greedy)

    def change() -> jax.Array:
        final = adjust(columns, rows, positions, adjustments, owners, implementation)
        if processor is not None:
            wanted = (rows.adjusted & PROCESSED > 0)[None]
            final = jnp.where(wanted, processor(final, positions, adjustments, owners), final)
        return final if allowed is None else constrain(final, rows, allowed, owners)

    def choose(final: jax.Array, best: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens = lax.cond(
            drawn.any(),
            lambda: jnp.where(drawn, _draw(final, best, rows, positions, implementation), best),
            lambda: best,
        )
        return tokens, of_tokens(final, best)

    def choose_of_changed() -> tuple[jax.Array, jax.Array]:
        final = change()
        return choose(final, argmax(final, implementation=implementation))

    # A branch for each kind: one branch's result would be a copy of all logits where nothing is adjusted.
    kind = jnp.where(adjusted.any(), 2, drawn.any().astype(jnp.int32))
    tokens, height = lax.switch(kind, (lambda: (greedy, largest), lambda: choose(columns, greedy), choose_of_changed))

    def drawn_logits() -> tuple[jax.Array, jax.Array]:
        return drawn_from(change(), height, rows, tokens, implementation), jnp.zeros_like(height)

    # Changed anew, for the few who ask: libtpu aborts where the logits of a branch outlive the loop of a draw in it.
    scores = score_if(of_changed, drawn_logits, tokens, most, implementation)
    of_model = score_if((rows.scored > 0) & ~of_changed, lambda: (columns, largest), tokens, most, implementation)
    return _checked(tokens, largest, height, rows), jnp.where(of_changed[:, None], scores, of_model)


def _checked(tokens: jax.Array, largest: jax.Array, height: jax.Array, rows: SamplingRows) -> jax.Array:
    """Return the tokens, with a sign in place of each that was chosen from logits that are not finite.

    Args:
        largest: (rows,) float32, the largest logits of the model, NaN where one of a row's is.
        height: (rows,) float32, the largest logits after all changes.
    """
    none_left = height == -jnp.inf
    sound = jnp.isfinite(largest) & (jnp.isfinite(height) | none_left & (rows.adjusted & CONSTRAINED > 0))
    return jnp.where(sound, tokens, jnp.where(none_left, NONE_LEFT, NOT_FINITE))


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
    largest, keys = of_tokens(columns, best), keys_of(rows.seed_low, rows.seed_high, positions)

    def best_from(least: jax.Array) -> jax.Array:
        return draw(columns, keys, largest, temperature, least, implementation=implementation)

    def mass_from(least: jax.Array) -> jax.Array:
        return mass(columns, largest, temperature, least, implementation=implementation)

    of_top_k, of_min_p = least_kept(columns, largest, temperature, rows, implementation)
    token, all_of_it = best_from(jnp.maximum(of_top_k, of_min_p)), (rows.temperature <= 0) | (rows.top_p >= 1)
    drawn: jax.Array = lax.cond(
        all_of_it.all(),
        lambda: token,
        lambda: _draw_nucleus(columns, best_from, mass_from, rows.top_p * mass_from(of_top_k), (token, all_of_it)),
    )
    return drawn


_Search = tuple[jax.Array, jax.Array]
"""The best tokens so far, and whether they are settled, (rows,)."""


def _draw_nucleus(
    columns: jax.Array,
    best_from: Callable[[jax.Array], jax.Array],
    mass_from: Callable[[jax.Array], jax.Array],
    wanted: jax.Array,
    start: _Search,
) -> jax.Array:
    """Draw from the tokens that top-p keeps, without computing that set.

    A token is in the nucleus if the tokens likelier than it have less than top-p of the mass. If the best one is not,
    the less likely ones are not in it either: the next is the best of those likelier than it, with the same noise. So
    the result is the best token of the nucleus. (The pivots are FlashInfer's, Ye et al., 2025, arXiv:2501.01005, which
    draws anew for each.)

    Args:
        columns: (vocabulary, rows) float32, the logits.
        best_from: returns the best of each row's tokens whose logits are not below a bound, (rows,).
        mass_from: returns their mass, (rows,).
        wanted: (rows,) float32, the mass of the nucleus.
    """

    def above(token: jax.Array) -> jax.Array:
        own = of_tokens(columns, token)
        return jnp.where(jnp.abs(own) < SMALLEST, SMALLEST, jnp.nextafter(own, jnp.inf))

    def inside(token: jax.Array) -> jax.Array:
        ahead = mass_from(above(token))
        return ~(ahead >= wanted) | (ahead <= 0)  # a mass that is NaN ends the search

    def body(search: _Search) -> _Search:
        token, settled = search
        found = best_from(jnp.where(settled, jnp.inf, above(token)))
        token = jnp.where(settled, token, found)
        return token, settled | inside(token)

    token, settled = start
    found: jax.Array = lax.while_loop(lambda search: ~search[1].all(), body, (token, settled | inside(token)))[0]
    return found
