"""Normalisation, in C++."""

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.cpu.library import load


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """See `layers.rms_norm`. The order of each row's sum is independent of other rows."""
    load()
    rows = x.reshape(-1, x.shape[-1])
    result = jax.ShapeDtypeStruct(rows.shape, jnp.float32)
    y: jax.Array = jax.ffi.ffi_call("rekindle_rms_norm", result)(rows, weight.astype(jnp.float32), eps=np.float32(eps))
    return y.reshape(x.shape)
