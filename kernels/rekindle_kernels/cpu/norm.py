"""Normalisation, in C++."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.cpu.library import load
from rekindle_kernels.inputs import Input, Normed


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """See `layers.rms_norm`. The order of each row's sum is independent of other rows."""
    return norm(Normed(x, weight, eps))


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """See `layers.layer_norm`. The order of each row's sums is independent of other rows."""
    return norm(Normed(x, weight, eps, centred=True, bias=bias))


def norm(x: Normed) -> jax.Array:
    """Compute a deferred norm, (..., features)."""
    load()
    rows = x.x.reshape(-1, x.x.shape[-1])
    weight, bias, options = arguments_of(x)
    call = jax.ffi.ffi_call("rekindle_norm", jax.ShapeDtypeStruct(rows.shape, jnp.float32))
    y: jax.Array = call(rows, weight, bias, **options)
    return y.reshape(x.x.shape)


def arguments_of(x: Input) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """Return the weight, the bias and the options of an input's norm for a call. An empty array stands for none."""
    none = jnp.zeros(0, jnp.float32)
    if not isinstance(x, Normed):
        return none, none, {"eps": np.float32(0), "centred": False}
    bias = none if x.bias is None else x.bias.astype(jnp.float32)
    return x.weight.astype(jnp.float32), bias, {"eps": np.float32(x.eps), "centred": x.centred}
