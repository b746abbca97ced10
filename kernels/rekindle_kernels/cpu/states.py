"""Recurrent layer states, in C++. A decode row is a block of one token, with the bits of a token of a longer block."""

import jax
import jax.numpy as jnp

from rekindle_kernels.cpu.library import load


def convolve_blocks(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.convolve_blocks`. Donated states are updated in place; bits are independent of other slots."""
    return _call("rekindle_convolve", x, states, (x, weight, _optional(bias)), (slots, starts, counts))


def convolve_rows(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, slots: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """See `states.convolve_rows`. The same bits as in `convolve_blocks`."""
    ones = jnp.ones_like(slots)
    y, states = convolve_blocks(x[:, None], weight, bias, states, slots, ones, ones)
    return y[:, 0], states


def recur_blocks(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.recur_blocks`. Donated states are updated in place; bits are independent of other slots."""
    decay = decay.reshape(*v.shape[:3], -1)
    return _call("rekindle_recur", v, states, (q, k, v, decay, _optional(beta)), (slots, starts, counts))


def recur_rows(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array | None,
    states: jax.Array,
    slots: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See `states.recur_rows`. The same bits as in `recur_blocks`."""
    ones, betas = jnp.ones_like(slots), None if beta is None else beta[:, None]
    o, states = recur_blocks(q[:, None], k[:, None], v[:, None], decay[:, None], betas, states, slots, ones, ones)
    return o[:, 0], states


def _optional(array: jax.Array | None) -> jax.Array:
    """Return the numbers of an optional argument, none if it is not given."""
    return jnp.zeros(0, jnp.float32) if array is None else array.reshape(-1)


def _call(
    target: str, like: jax.Array, states: jax.Array, floats: tuple[jax.Array, ...], integers: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    load()
    results = (jax.ShapeDtypeStruct(states.shape, jnp.float32), jax.ShapeDtypeStruct(like.shape, jnp.float32))
    call = jax.ffi.ffi_call(target, results, input_output_aliases={0: 0})
    updated, result = call(states, *floats, *(each.astype(jnp.int32) for each in integers))
    return result, updated
