"""Rotary position embedding in portable XLA."""

import jax
import jax.numpy as jnp


def rotate(qkv: jax.Array, cos: jax.Array, sin: jax.Array, kv_heads: int) -> tuple[jax.Array, jax.Array]:
    """See `layers.rotate`."""
    heads, pairs = qkv.shape[1] - 2 * kv_heads, cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]

    def rotate_heads(x: jax.Array) -> jax.Array:
        first, second, rest = jnp.split(x, [pairs, 2 * pairs], axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    q, k, v = jnp.split(qkv, [heads, heads + kv_heads], axis=1)
    return rotate_heads(q), jnp.stack([rotate_heads(k), v], axis=1)
