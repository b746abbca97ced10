"""The random numbers of draws: Gumbel noise that is a pure function of (seed, position, token)."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32

BELOW_ONE = 1 - 2.0**-24
"""The largest float32 below 1, whose noise is finite."""


def gumbel(seed_low: jax.Array, seed_high: jax.Array, positions: jax.Array, vocabulary: int) -> jax.Array:
    """Compute standard Gumbel noise for each token of each row.

    Threefry-2x32 (Salmon et al., 2011) hashes a row's seed and position to a key of two words, and a cheaper hash takes
    the key and the token.

    Args:
        seed_low, seed_high: (rows,) int32, the two words of a 64-bit seed.
        positions: (rows,) int32.
        vocabulary: how many tokens there are.

    Returns:
        (vocabulary, rows) float32, from -2.9 to 22.9.
    """
    first, second = _keys(seed_low, seed_high, positions)
    tokens = lax.broadcasted_iota(jnp.uint32, (vocabulary, len(positions)), 0)
    return to_gumbel(_mix(_mix(tokens ^ first[None]) ^ second[None]))


def to_gumbel(words: jax.Array) -> jax.Array:
    """Map uniform words, uint32, to Gumbel noise: -log(E), where E = -log(1 - u) is exponential and u is in (0, 1).

    The largest noise, which decides a draw, comes from the smallest u. These keep their relative precision.
    """
    uniform = jnp.minimum((words.astype(jnp.float32) + 0.5) * 2.0**-32, BELOW_ONE)
    return -jnp.log(-jnp.log1p(-uniform))


def _keys(seed_low: jax.Array, seed_high: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    low, high, position = (lax.bitcast_convert_type(word, jnp.uint32) for word in (seed_low, seed_high, positions))

    def one(low: jax.Array, high: jax.Array, position: jax.Array) -> jax.Array:
        key: jax.Array = threefry_2x32(jnp.stack([low, high]), jnp.stack([position, jnp.uint32(0)]))
        return key

    keys = jax.vmap(one, out_axes=1)(low, high, position)
    return keys[0], keys[1]


def _mix(words: jax.Array) -> jax.Array:
    """Map 32-bit words one to one so that each bit of a word changes each bit of its image half of the time.

    The constants are the best known for this form, with an avalanche bias of 0.11 (C. Wellons, hash-prospector, 2022,
    github.com/skeeto/hash-prospector, issue 19).
    """
    words = (words ^ (words >> 16)) * jnp.uint32(0x21F0AAAD)
    words = (words ^ (words >> 15)) * jnp.uint32(0xD35A2D97)
    return words ^ (words >> 15)
