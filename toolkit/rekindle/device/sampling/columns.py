"""Reading (vocabulary, rows), the order in which the last product leaves the logits."""

import jax
import jax.numpy as jnp

BLOCK = 32
"""As many numbers as XLA's CPU backend reduces in one loop with whatever computes them. Others need no blocks."""


def in_blocks(columns: jax.Array, padding: float | bool, size: int = BLOCK) -> jax.Array:
    """Reshape (vocabulary, rows) to (blocks, size, rows), with padding at the end."""
    padded = jnp.pad(columns, ((0, -len(columns) % size), (0, 0)), constant_values=padding)
    return padded.reshape(-1, size, columns.shape[1])


def of_tokens(columns: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return each row's value at its token, (rows,)."""
    return jnp.take_along_axis(columns, tokens[None], axis=0)[0]
