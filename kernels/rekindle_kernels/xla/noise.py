"""Sampling noise: Gumbel noise as a pure function of a row's keys and the token."""

import jax
import jax.numpy as jnp
from jax import lax

BELOW_ONE = 1 - 2.0**-24
"""The largest float32 below 1, with finite noise."""


def gumbel(first: jax.Array, second: jax.Array, vocabulary: int) -> jax.Array:
    """Compute standard Gumbel noise for each token of each row.

    Args:
        first, second: (rows,) uint32, the two words of a row's key.
        vocabulary: the number of tokens.

    Returns:
        (vocabulary, rows) float32, from -2.9 to 22.9.
    """
    tokens = lax.broadcasted_iota(jnp.uint32, (vocabulary, len(first)), 0)
    return to_gumbel(_mix(_mix(tokens ^ first[None]) ^ second[None]))


def to_gumbel(words: jax.Array) -> jax.Array:
    """Map uniform words, uint32, to Gumbel noise: -log(E), where E = -log(1 - u) is exponential and u is in (0, 1).

    The largest noise decides a sample, and comes from the smallest u. Small u keep their relative precision.
    """
    uniform = jnp.minimum((words.astype(jnp.float32) + 0.5) * 2.0**-32, BELOW_ONE)
    return -jnp.log(-jnp.log1p(-uniform))


def _mix(words: jax.Array) -> jax.Array:
    """Map 32-bit words one to one, with each input bit changing each output bit half of the time.

    The constants are the best known for this form, with an avalanche bias of 0.11 (C. Wellons, hash-prospector, 2022,
    github.com/skeeto/hash-prospector, issue 19).
    """
    words = (words ^ (words >> 16)) * jnp.uint32(0x21F0AAAD)
    words = (words ^ (words >> 15)) * jnp.uint32(0xD35A2D97)
    return words ^ (words >> 15)
