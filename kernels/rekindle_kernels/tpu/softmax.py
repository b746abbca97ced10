"""The online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867), one tile of scores at a time."""

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30
"""The score of what is not seen: finite, so that differences of two are."""


def product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """A matrix product over one dimension of each, accumulated in float32; exact for float32 operands."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


def capped(scores: jax.Array, soft_cap: float | None) -> jax.Array:
    """Scores under a soft cap, if there is one."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def fold(
    scores: jax.Array, seen: jax.Array, peak: jax.Array, total: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Take one more tile into the sums.

    A row that has seen nothing yet may gather weights of 1; they shrink to 0 with the first position that it sees.

    Args:
        scores: (rows, tokens) float32.
        seen: the same shape, bool.
        peak, total: (rows, 1) the largest score so far, and the sum of weights relative to it.

    Returns:
        The new peak and total, what earlier sums shrink by, and (rows, tokens) weights of this tile.
    """
    scores = jnp.where(seen, scores, MASKED)
    new_peak = jnp.maximum(peak, scores.max(1, keepdims=True))
    shrink = jnp.exp(peak - new_peak)
    weights = jnp.exp(scores - new_peak)
    return new_peak, total * shrink + weights.sum(1, keepdims=True), shrink, weights


def finished(weighted: jax.Array, peak: jax.Array, total: jax.Array) -> jax.Array:
    """The weighted mean; zeros for rows that saw nothing, NaN for rows that saw one."""
    nothing = peak <= MASKED / 2
    return jnp.where(nothing, 0.0, weighted / jnp.where(nothing, 1.0, total))
