"""Sums of hidden states, computed in the step."""

import jax
import jax.numpy as jnp
from jax import lax


def sum_states(hidden: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
    """Add up the hidden states of some tokens for each of several chunks.

    Args:
        hidden: (tokens, hidden) float32.
        first: (chunks,) int32, the index of the first token of each sum.
        count: (chunks,) int32, how many tokens it has; 0 for a sum that nobody wants.

    Returns:
        (chunks, hidden) float32, zeros where nothing is wanted. A sum of one token is its hidden state, bit by bit.
    """

    def sums() -> jax.Array:
        index = jnp.arange(len(hidden), dtype=jnp.int32)[None]
        chosen = (index >= first[:, None]) & (index < (first + count)[:, None])
        states = jnp.where(chosen.any(0)[:, None], hidden, 0)  # padding may be anything
        return jnp.dot(chosen.astype(jnp.float32), states, precision=lax.Precision.HIGHEST)

    if not len(hidden):
        return jnp.zeros((len(first), hidden.shape[1]), jnp.float32)
    wanted: jax.Array = lax.cond((count > 0).any(), sums, lambda: jnp.zeros((len(first), hidden.shape[1]), jnp.float32))
    return wanted
