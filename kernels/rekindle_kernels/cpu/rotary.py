"""Rotary position embedding, in C++."""

import jax
import jax.numpy as jnp

from rekindle_kernels.cpu.library import load


def rotate(qkv: jax.Array, cos: jax.Array, sin: jax.Array, kv_heads: int) -> tuple[jax.Array, jax.Array]:
    """See `layers.rotate`."""
    load()
    tokens, heads, head_dim = qkv.shape
    q_form = jax.ShapeDtypeStruct((tokens, heads - 2 * kv_heads, head_dim), jnp.float32)
    kv_form = jax.ShapeDtypeStruct((tokens, 2, kv_heads, head_dim), jnp.float32)
    q, kv = jax.ffi.ffi_call("rekindle_rotate", (q_form, kv_form))(qkv, cos, sin)
    return q, kv
