"""Masks of the tokens that constraints allow: one bit a token, set from the host before each token is sampled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.device.sampling.rows import CONSTRAINED, SamplingRows

BITS = 32
AT_ONCE = 16
"""Slots whose masks are set by one call of a program: it is padded to as many, a few hundred kilobytes at most."""

Array = np.ndarray[Any, np.dtype[np.int32]]


def words_of(vocabulary: int) -> int:
    """Return how many int32 the mask of a vocabulary takes."""
    return -(-vocabulary // BITS)


def no_masks(words: int, null_slot: int) -> tuple[Array, Array]:
    """Return slots (AT_ONCE,) int32 and their masks (AT_ONCE, words) int32, all of which are padding."""
    return np.full(AT_ONCE, null_slot, np.int32), np.zeros((AT_ONCE, words), np.int32)


def constrain(columns: jax.Array, rows: SamplingRows, allowed: jax.Array, owners: jax.Array) -> jax.Array:
    """Ban what the constraints of rows do not allow.

    A row of which nothing would be left stays as it is: the host sees that its token is not allowed, and fails the
    request.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        allowed: (slots, words) int32, the masks; the lowest bit of the first word is token 0.
        owners: (rows,) int32, the slot of each row.

    Returns:
        (vocabulary, rows) float32.
    """
    constrained = (rows.adjusted & CONSTRAINED) > 0

    def masked(columns: jax.Array) -> jax.Array:
        words = allowed[owners].T[:, None]
        bits = (words >> lax.broadcasted_iota(jnp.int32, (1, BITS, 1), 1)) & 1
        may = bits.reshape(-1, len(owners))[: len(columns)] > 0
        left = (may & (columns > -jnp.inf)).any(0)
        return jnp.where(may | ~(constrained & left)[None], columns, -jnp.inf)

    banned: jax.Array = lax.cond(constrained.any(), masked, lambda columns: columns, columns)
    return banned
