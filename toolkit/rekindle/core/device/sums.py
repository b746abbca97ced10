"""Sums of hidden states, computed inside the step."""

import jax
import jax.numpy as jnp
from jax import lax


def sum_states(hidden: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
    """Add up the hidden states of some tokens for each of several chunks.

    Args:
        hidden: (tokens, hidden) float32.
        first: (chunks,) int32, the index of the first token of each sum.
        count: (chunks,) int32, the number of its tokens; 0 for no sum.

    Returns:
        (chunks, hidden) float32, zeros where the count is 0. The sum of one token equals its hidden state bit for bit.
    """

    def sums() -> jax.Array:
        index = jnp.arange(len(hidden), dtype=jnp.int32)[None]
        members = (index >= first[:, None]) & (index < (first + count)[:, None])
        states = jnp.where(members.any(0)[:, None], hidden, 0)  # padding may hold any values
        return jnp.dot(members.astype(jnp.float32), states, precision=lax.Precision.HIGHEST)

    if not len(hidden):
        return jnp.zeros((len(first), hidden.shape[1]), jnp.float32)
    zeros = jnp.zeros((len(first), hidden.shape[1]), jnp.float32)
    result: jax.Array = lax.cond((count > 0).any(), sums, lambda: zeros)
    return result
