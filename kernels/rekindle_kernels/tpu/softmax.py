"""The online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867), one tile of scores at a time."""

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30
"""Score of an invisible position. It is finite, so that differences of scores are finite too."""


def product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Multiply matrices over one dimension of each, with sums in float32, and full precision for float32 operands."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


def cap(scores: jax.Array, soft_cap: float | None) -> jax.Array:
    """Apply the soft cap to scores; None means no cap."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def fold(
    scores: jax.Array, mask: jax.Array, peak: jax.Array, total: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Add one more tile to the sums.

    A row without a visible position so far may sum up weights of 1; its first visible position shrinks the sum to 0.

    Args:
        scores: (rows, tokens) float32.
        mask: (rows, tokens) bool, whether a position is visible.
        peak, total: (rows, 1) the largest score so far, and the sum of weights relative to it.

    Returns:
        The new peak and total, the factor of earlier sums, and the weights of this tile, (rows, tokens).
    """
    scores = jnp.where(mask, scores, MASKED)
    new_peak = jnp.maximum(peak, scores.max(1, keepdims=True))
    shrink = jnp.exp(peak - new_peak)
    weights = jnp.exp(scores - new_peak)
    return new_peak, total * shrink + weights.sum(1, keepdims=True), shrink, weights


def finish(weighted: jax.Array, peak: jax.Array, total: jax.Array) -> jax.Array:
    """Return the weighted mean: zeros for rows without visible positions, NaN for rows with a visible NaN."""
    nothing = peak <= MASKED / 2
    return jnp.where(nothing, 0.0, weighted / jnp.where(nothing, 1.0, total))
