"""Constant arrays in the body of a loop."""

from typing import Any

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from rekindle_kernels.devices import default_device


def read_in_place(arrays: Any, turn: jax.Array, implementation: str) -> Any:
    """Return arrays for the body of a loop, safe from conversions and transpositions before the loop.

    XLA would keep such copies of whole weights until the loop ends. The device is JAX's default device, as for tile
    sizes.

    Args:
        arrays: a pytree of arrays from outside the loop.
        turn: the number of the loop's turn; to XLA, the arrays depend on it.
    """
    arrays, _ = lax.optimization_barrier((arrays, turn))
    # A TPU's layout follows the shape; other devices have one order of dimensions, which their loops keep.
    return jax.tree.map(_in_device_layout, arrays) if implementation == "tpu" else arrays


def _in_device_layout(x: jax.Array) -> jax.Array:
    device = default_device()
    layout: Any = device.client.get_default_layout(x.dtype, x.shape, device)
    constrained: jax.Array = with_layout_constraint(x, Layout.from_pjrt_layout(layout))
    return constrained
