"""Normalisation in portable XLA."""

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """See `layers.rms_norm`."""
    scale = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * jnp.expand_dims(weight.astype(jnp.float32), tuple(range(x.ndim - 1)))
