"""Rotary positions in portable XLA."""

import jax
import jax.numpy as jnp


def rotate(qkv: jax.Array, cos: jax.Array, sin: jax.Array, kv_heads: int) -> tuple[jax.Array, jax.Array]:
    """See `layers.rotate`."""
    heads, turned = qkv.shape[1] - 2 * kv_heads, cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]

    def turn(x: jax.Array) -> jax.Array:
        first, second, rest = jnp.split(x, [turned, 2 * turned], axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    q, k, v = jnp.split(qkv, [heads, heads + kv_heads], axis=1)
    return turn(q), jnp.stack([turn(k), v], axis=1)
