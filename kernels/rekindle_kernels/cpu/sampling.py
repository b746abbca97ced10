"""Sampling operations over the vocabulary, in C++."""

from typing import Any

import jax
import jax.numpy as jnp

from rekindle_kernels.cpu.library import load
from rekindle_kernels.penalties import Penalties


def mass(columns: jax.Array, largest: jax.Array, temperature: jax.Array, least: jax.Array) -> jax.Array:
    """See `sampling.mass`. The order of each row's sum is independent of other rows."""
    return _call("rekindle_mass", largest.shape, jnp.float32, columns, largest, temperature, least)


def argmax(columns: jax.Array) -> jax.Array:
    """See `sampling.argmax`."""
    return _call("rekindle_argmax", columns.shape[1:], jnp.int32, columns)


def nth_largest(columns: jax.Array, n: jax.Array) -> jax.Array:
    """See `sampling.nth_largest`."""
    return _call("rekindle_nth_largest", n.shape, jnp.float32, columns, n)


def count_above(columns: jax.Array, bound: jax.Array) -> jax.Array:
    """See `sampling.count_above`."""
    return _call("rekindle_count_above", bound.shape, jnp.int32, columns, bound)


def draw(
    columns: jax.Array,
    keys: tuple[jax.Array, jax.Array],
    largest: jax.Array,
    temperature: jax.Array,
    least: jax.Array,
) -> jax.Array:
    """See `sampling.draw`."""
    return _call("rekindle_draw", largest.shape, jnp.int32, columns, *keys, largest, temperature, least)


def adjust(columns: jax.Array, bias: jax.Array, marks: jax.Array, owners: jax.Array, penalties: Penalties) -> jax.Array:
    """See `sampling.adjust`."""
    weights = (penalties.repetition, penalties.frequency, penalties.presence, penalties.too_early.astype(jnp.int32))
    return _call("rekindle_adjust", columns.shape, jnp.float32, columns, bias, marks, owners, *weights)


def _call(target: str, shape: tuple[int, ...], dtype: Any, *arguments: jax.Array) -> jax.Array:
    load()
    result: jax.Array = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype))(*arguments)
    return result
