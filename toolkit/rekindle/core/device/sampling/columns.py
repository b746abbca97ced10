"""Reading (vocabulary, rows), the order in which the last product leaves the logits."""

import jax
import jax.numpy as jnp


def of_tokens(columns: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return each row's value at its token, (rows,)."""
    return jnp.take_along_axis(columns, tokens[None], axis=0)[0]
