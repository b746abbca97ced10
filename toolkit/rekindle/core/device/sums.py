"""Sums of hidden states, computed inside the step."""

import jax
import jax.numpy as jnp
from jax import lax

UNROLLED = 8
"""Tokens of each sum in one iteration."""


def sum_states(hidden: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
    """Add up the hidden states of some tokens for each of several chunks.

    Args:
        hidden: (tokens, hidden) float32.
        first: (chunks,) int32, the index of the first token of each sum.
        count: (chunks,) int32, the number of its tokens; 0 for no sum.

    Returns:
        (chunks, hidden) float32, zeros where the count is 0. The sum of one token equals its hidden state bit for bit,
        and no sum depends on the other tokens and chunks.
    """

    def sums() -> jax.Array:
        def add(block: jax.Array, total: jax.Array) -> jax.Array:
            for offset in range(UNROLLED):  # a reduction would add up in an order of its shape
                place = block * UNROLLED + offset
                rows = hidden[jnp.minimum(first + place, len(hidden) - 1)]
                total = total + jnp.where((place < count)[:, None], rows, 0)  # padding may hold any values
            return total

        total: jax.Array = lax.fori_loop(0, -(-count.max() // UNROLLED), add, zeros)
        return total

    zeros = jnp.zeros((len(first), hidden.shape[1]), jnp.float32)
    if not len(hidden):
        return zeros
    result: jax.Array = lax.cond((count > 0).any(), sums, lambda: zeros)
    return result
