"""Normalisation in portable XLA."""

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """See `layers.rms_norm`."""
    scale = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * _row(weight, x.ndim)


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """See `layers.layer_norm`."""
    y = rms_norm(x - jnp.mean(x, axis=-1, keepdims=True), weight, eps)
    return y if bias is None else y + _row(bias, x.ndim)


def _row(numbers: jax.Array, ndim: int) -> jax.Array:
    return jnp.expand_dims(numbers.astype(jnp.float32), tuple(range(ndim - 1)))
