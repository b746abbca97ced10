"""The online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867), one tile of scores at a time."""

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30
"""The score of a position that is not seen. It is finite, so that differences of scores are finite too."""


def product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Multiply matrices over one dimension of each, with sums in float32, and full precision for float32 operands."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


def capped(scores: jax.Array, soft_cap: float | None) -> jax.Array:
    """Apply the soft cap to scores, if there is one."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def fold(
    scores: jax.Array, seen: jax.Array, peak: jax.Array, total: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Add one more tile to the sums.

    A row that has seen nothing yet may sum up weights of 1; the first position that it sees shrinks them to 0.

    Args:
        scores: (rows, tokens) float32.
        seen: (rows, tokens) bool.
        peak, total: (rows, 1) the largest score so far, and the sum of weights relative to it.

    Returns:
        The new peak and total, the factor of earlier sums, and the weights of this tile, (rows, tokens).
    """
    scores = jnp.where(seen, scores, MASKED)
    new_peak = jnp.maximum(peak, scores.max(1, keepdims=True))
    shrink = jnp.exp(peak - new_peak)
    weights = jnp.exp(scores - new_peak)
    return new_peak, total * shrink + weights.sum(1, keepdims=True), shrink, weights


def finished(weighted: jax.Array, peak: jax.Array, total: jax.Array) -> jax.Array:
    """Return the weighted mean: zeros for rows that saw nothing, NaN for rows that saw a NaN."""
    nothing = peak <= MASKED / 2
    return jnp.where(nothing, 0.0, weighted / jnp.where(nothing, 1.0, total))
