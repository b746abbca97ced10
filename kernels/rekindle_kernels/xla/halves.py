"""Rows of activations as float16 numbers, with their range up to 65,504.

Activations leave this range: residual streams of Gemma 3 reach 800,000. A row times a power of two is within, and its
relative rounding is that of float16 for all numbers down to a 2**28th of the largest.
"""

import jax
import jax.numpy as jnp
from jax import lax

EXPONENT = 14
"""The exponent of the largest number of each row, below 2**15."""
MANTISSA, BIAS = 23, 127
"""The bits of a float32 mantissa, and the bias of its exponent."""


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (..., features) as float16, and the powers of two to multiply products with, (..., 1) float32.

    A row with an infinity or NaN has one in the result.
    """
    bits = lax.bitcast_convert_type(jnp.abs(x).max(-1, keepdims=True), jnp.int32)
    exponent = jnp.clip(bits >> MANTISSA, EXPONENT + 1, 2 * BIAS)
    into, back = (_power(sign * (exponent - BIAS - EXPONENT)) for sign in (-1, 1))
    return (x * into).astype(jnp.float16), back


def _power(exponent: jax.Array) -> jax.Array:
    """Return powers of two, exactly."""
    power: jax.Array = lax.bitcast_convert_type(exponent + BIAS << MANTISSA, jnp.float32)
    return power
