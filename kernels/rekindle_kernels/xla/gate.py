"""The gate of a feed-forward layer in portable XLA."""

import jax
import jax.numpy as jnp


def gate(x: jax.Array) -> jax.Array:
    """See `layers.gate`."""
    first, second = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(first) * second
