"""Sampling tokens from logits: greedy and seeded rows in one batch, without a sort.

The order of application follows transformers: logit bias, repetition, frequency and presence penalty, bad words, min
tokens, allowed tokens (all in `adjustments`), the user's logits processor, a constraint, then temperature, top-k,
top-p, min-p, then sampling. Logits are (vocabulary, rows), the output order of the model's last product.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32

from rekindle.core.device.outputs import NONE_LEFT, NOT_FINITE
from rekindle.core.device.sampling.adjustments import Adjustments, adjust
from rekindle.core.device.sampling.columns import of_tokens
from rekindle.core.device.sampling.constraints import constrain
from rekindle.core.device.sampling.distribution import least_logits, sampling_logits
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.sampling.rows import CONSTRAINED, OF_ALLOWED, OF_SAMPLED, PROCESSED, SamplingRows
from rekindle.core.device.sampling.scores import ScoredLogits, score_if
from rekindle_kernels.api import Implementation
from rekindle_kernels.sampling import argmax, draw, mass


def keys_of(seed_low: jax.Array, seed_high: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hash each row's seed and position by Threefry-2x32 (Salmon et al., 2011).

    Args:
        seed_low, seed_high: (rows,) int32, the two words of a 64-bit seed.
        positions: (rows,) int32.

    Returns:
        The two words of each row's key, (rows,) uint32.
    """
    low, high, position = (lax.bitcast_convert_type(word, jnp.uint32) for word in (seed_low, seed_high, positions))

    def one(low: jax.Array, high: jax.Array, position: jax.Array) -> jax.Array:
        key: jax.Array = threefry_2x32(jnp.stack([low, high]), jnp.stack([position, jnp.uint32(0)]))
        return key

    keys = jax.vmap(one, out_axes=1)(low, high, position)
    return keys[0], keys[1]


SMALLEST = 2.0**-126
"""Smallest normal float32: subnormal numbers count as 0."""


def sample(
    columns: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    adjustments: Adjustments,
    owners: jax.Array,
    max_logprobs: int,
    processor: LogitsProcessor | None = None,
    implementation: Implementation = "xla",
    allowed: jax.Array | None = None,
    masks: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Choose one token for each row, and score it on request.

    A row's token depends on its logits, its parameters and (seed, position), and on nothing else in the batch. A batch
    of greedy rows without adjustments and scores costs only the argmax.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        rows: the sampling parameters of the rows.
        positions: (rows,) int32, the token's position in its request.
        adjustments: the adjustments of all slots.
        owners: (rows,) int32, the slot of each row.
        max_logprobs: the number of likeliest tokens in a score.
        processor: the logits processor, applied after the adjustments, static.
        implementation: the kernel implementation.
        allowed: (any, words) int32, the allowed-token masks, see `constrain`; None without constraints.
        masks: (rows,) int32, the mask of each row; None for those of `owners`.

    Returns:
        (rows,) int32 token ids, `NOT_FINITE` or `NONE_LEFT`, and their scores, packed by `scores.score`, undefined for
        rows without `logprobs_of`. A constrained row with no token left gets any token: its grammar rejects it.
    """
    is_sampled, is_changed = rows.temperature > 0, rows.change_bits > 0
    of_allowed = (rows.logprobs_of == OF_ALLOWED) & is_changed
    from_changed = (rows.logprobs_of == OF_SAMPLED) & (is_sampled | is_changed) | of_allowed
    greedy = argmax(columns, implementation=implementation)
    largest = of_tokens(columns, greedy)

    def change() -> jax.Array:
        final = adjust(columns, rows, positions, adjustments, owners, implementation)
        if processor is not None:
            is_processed = (rows.change_bits & PROCESSED > 0)[None]
            final = jnp.where(is_processed, processor(final, positions, adjustments, owners), final)
        return final if allowed is None else constrain(final, rows, allowed, owners if masks is None else masks)

    def choose(final: jax.Array, best: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens = lax.cond(
            is_sampled.any(),
            lambda: jnp.where(is_sampled, _sample_rows(final, best, rows, positions, implementation), best),
            lambda: best,
        )
        return tokens, of_tokens(final, best)

    def choose_from_changed() -> tuple[jax.Array, jax.Array]:
        final = change()
        return choose(final, argmax(final, implementation=implementation))

    # Separate branches avoid a copy of all logits if no row changes them.
    kind = jnp.where(is_changed.any(), 2, is_sampled.any().astype(jnp.int32))
    tokens, height = lax.switch(kind, (lambda: (greedy, largest), lambda: choose(columns, greedy), choose_from_changed))

    def changed_logits() -> ScoredLogits:
        final = change()
        sampled = sampling_logits(final, height, rows, tokens, implementation)
        allowed = jnp.where(final == -jnp.inf, final, columns)
        of_model = ~from_changed | of_allowed
        return ScoredLogits(
            jnp.where(of_model, columns, sampled),
            jnp.where(of_model, largest, 0),
            jnp.where(of_allowed, allowed, jnp.where(of_model, columns, sampled)),
        )

    def scored_logits() -> ScoredLogits:
        logits: ScoredLogits = lax.cond(
            from_changed.any(), changed_logits, lambda: ScoredLogits(columns, largest, columns)
        )
        return logits

    # The changed logits are computed again for these few rows: libtpu aborts if they outlive a loop of their branch.
    scores = score_if(rows.logprobs_of > 0, scored_logits, tokens, max_logprobs, implementation)
    return _with_error_codes(tokens, largest, height, rows), scores


def _with_error_codes(tokens: jax.Array, largest: jax.Array, height: jax.Array, rows: SamplingRows) -> jax.Array:
    """Replace each token chosen from non-finite logits by an error code.

    Args:
        largest: (rows,) float32, the model's largest logits, NaN in a row with any NaN.
        height: (rows,) float32, the largest logits after all changes.
    """
    none_left = height == -jnp.inf
    sound = jnp.isfinite(largest) & (jnp.isfinite(height) | none_left & (rows.change_bits & CONSTRAINED > 0))
    return jnp.where(sound, tokens, jnp.where(none_left, NONE_LEFT, NOT_FINITE))


def _sample_rows(
    columns: jax.Array, best: jax.Array, rows: SamplingRows, positions: jax.Array, implementation: Implementation
) -> jax.Array:
    """Sample by the Gumbel-max trick: the token with the largest sum of logit / temperature and noise.

    With the same noise and slightly different logits, such as those of another batch size, the token rarely changes:
    with a probability of at most 2d / (1 + d) for softmaxes of total variation distance d. No method with access to
    only one of the two has a lower bound (Bavarian et al., 2020, arXiv:1612.01041).

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

    of_top_k, of_min_p = least_logits(columns, largest, temperature, rows, implementation)
    token, is_final = best_from(jnp.maximum(of_top_k, of_min_p)), (rows.temperature <= 0) | (rows.top_p >= 1)
    tokens: jax.Array = lax.cond(
        is_final.all(),
        lambda: token,
        lambda: _sample_nucleus(columns, best_from, mass_from, rows.top_p * mass_from(of_top_k), (token, is_final)),
    )
    return tokens


_Search = tuple[jax.Array, jax.Array]
"""The best tokens so far, and whether each is final, (rows,)."""


def _sample_nucleus(
    columns: jax.Array,
    best_from: Callable[[jax.Array], jax.Array],
    mass_from: Callable[[jax.Array], jax.Array],
    nucleus: jax.Array,
    start: _Search,
) -> jax.Array:
    """Sample from the nucleus of top-p, without computing the set.

    A token is in the nucleus if all likelier tokens together have less than top-p of the mass. If the best token is
    outside, so are all less likely ones: the next candidate is the best of the likelier tokens, with the same noise.
    So the result is the best token of the nucleus. (The pivots are FlashInfer's, Ye et al., 2025, arXiv:2501.01005;
    FlashInfer draws new noise for each.)

    Args:
        columns: (vocabulary, rows) float32, the logits.
        best_from: returns each row's best token with a logit not below a bound, (rows,).
        mass_from: returns the mass of all tokens with logits not below a bound, (rows,).
        nucleus: (rows,) float32, the mass of the nucleus.
        start: the best token of each row, and whether the row needs no search.
    """

    def above(token: jax.Array) -> jax.Array:
        logit = of_tokens(columns, token)
        return jnp.where(jnp.abs(logit) < SMALLEST, SMALLEST, jnp.nextafter(logit, jnp.inf))

    def inside(token: jax.Array) -> jax.Array:
        ahead = mass_from(above(token))
        return ~(ahead >= nucleus) | (ahead <= 0)  # a NaN mass ends the search

    def body(search: _Search) -> _Search:
        token, is_final = search
        candidate = best_from(jnp.where(is_final, jnp.inf, above(token)))
        token = jnp.where(is_final, token, candidate)
        return token, is_final | inside(token)

    token, is_final = start
    tokens: jax.Array = lax.while_loop(lambda search: ~search[1].all(), body, (token, is_final | inside(token)))[0]
    return tokens
