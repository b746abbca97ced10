"""Allowed-token masks of constraints: one bit per token, set by the host before each sampled token."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.device.sampling.rows import CONSTRAINED, SamplingRows

BITS = 32
MASKS_PER_CALL = 16
"""Number of masks in one ALLOW call, padding included. The masks take a few hundred kilobytes at most."""

Array = np.ndarray[Any, np.dtype[np.int32]]


def words_of(vocabulary: int) -> int:
    """Return the number of int32 words in the mask of a vocabulary."""
    return -(-vocabulary // BITS)


def no_masks(words: int, null_slot: int) -> tuple[Array, Array]:
    """Return padding only: places (MASKS_PER_CALL,) int32 and masks (MASKS_PER_CALL, words) int32."""
    return np.full(MASKS_PER_CALL, null_slot, np.int32), np.zeros((MASKS_PER_CALL, words), np.int32)


def constrain(columns: jax.Array, rows: SamplingRows, allowed: jax.Array, masks: jax.Array) -> jax.Array:
    """Ban the tokens not allowed by the constraints of rows.

    A row with no token left is unchanged: the host then gets a token outside the mask, and fails the request.

    Args:
        columns: (vocabulary, rows) float32, the logits.
        rows: the sampling parameters of the rows.
        allowed: (any, words) int32, the masks; the lowest bit of the first word is token 0.
        masks: (rows,) int32, the mask of each row.

    Returns:
        (vocabulary, rows) float32.
    """
    is_constrained = (rows.change_bits & CONSTRAINED) > 0

    def mask(columns: jax.Array) -> jax.Array:
        words = allowed[masks].T[:, None]
        bits = (words >> lax.broadcasted_iota(jnp.int32, (1, BITS, 1), 1)) & 1
        is_allowed = bits.reshape(-1, len(masks))[: len(columns)] > 0
        possible = (is_allowed & (columns > -jnp.inf)).any(0)
        return jnp.where(is_allowed | ~(is_constrained & possible)[None], columns, -jnp.inf)

    result: jax.Array = lax.cond(is_constrained.any(), mask, lambda columns: columns, columns)
    return result
