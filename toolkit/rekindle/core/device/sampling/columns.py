"""Access to logits in (vocabulary, rows) order, the output order of the model's last product."""

import jax
import jax.numpy as jnp


def of_tokens(columns: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the value of each row's token, (rows,)."""
    return jnp.take_along_axis(columns, tokens[None], axis=0)[0]
