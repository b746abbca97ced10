"""Keys of sampling noise: `rekindle_kernels` computes noise from a key and a token."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32


def keys_of(seed_low: jax.Array, seed_high: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hash each row's seed and position by Threefry-2x32 (Salmon et al., 2011).

    Args:
        seed_low, seed_high: (rows,) int32, the two words of a 64-bit seed.
        positions: (rows,) int32.

    Returns:
        The two words of each row's key, (rows,) uint32.
    """
    low, high, position = (lax.bitcast_convert_type(word, jnp.uint32) for word in (seed_low, seed_high, positions))

    def one(low: jax.Array, high: jax.Array, position: jax.Array) -> jax.Array:
        key: jax.Array = threefry_2x32(jnp.stack([low, high]), jnp.stack([position, jnp.uint32(0)]))
        return key

    keys = jax.vmap(one, out_axes=1)(low, high, position)
    return keys[0], keys[1]
