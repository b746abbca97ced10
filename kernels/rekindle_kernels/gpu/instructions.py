"""Instructions of a warpgroup, of 128 threads, and their forms in JAX's interpreter.

Of the GPUs, Hopper alone has the instructions. Code for them needs JAX 0.10 or later.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as mgpu


class Instructions:
    """Products of a warpgroup, and arrays with a part in each thread, like the results of products.

    Args:
        interpret: whether the interpreter runs the code.
    """

    def __init__(self, *, interpret: bool):
        self._interpret = interpret

    def full(self, shape: tuple[int, ...], value: float) -> jax.Array:
        """Return an array of one number: rows of a product, or a number for each row."""
        numbers = jnp.full(shape, value, jnp.float32)
        layout: Any = mgpu.Layout.WGMMA if len(shape) == 2 else mgpu.Layout.WGMMA.reduce(1)
        return numbers if self._interpret else mgpu.layout_cast(numbers, layout)

    def places(self, shape: tuple[int, int], axis: int) -> jax.Array:
        """Return each number's place along an axis, int32."""
        if self._interpret:
            return lax.broadcasted_iota(jnp.int32, shape, axis)
        return mgpu.broadcasted_iota(jnp.int32, shape, axis, layout=mgpu.Layout.WGMMA)

    def product(self, a: Any, b: Any) -> jax.Array:
        """Return `a @ b.T` in float32, of matrices in shared memory."""
        if self._interpret:
            return jnp.dot(a[...], b[...].T, preferred_element_type=jnp.float32)

        def multiply(sums: Any) -> jax.Array:
            mgpu.wgmma(sums, a, b.T)
            result: jax.Array = sums[...]
            return result

        result: jax.Array = pl.run_scoped(multiply, mgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[0]), jnp.float32))
        return result

    def add_product(self, sums: jax.Array, a: jax.Array, b: Any) -> jax.Array:
        """Return `sums + a @ b`, with `b` in shared memory."""
        if self._interpret:
            return sums + jnp.dot(a, b[...], preferred_element_type=jnp.float32)
        result: jax.Array = pl.run_state(lambda added: mgpu.wgmma(added, a, b))(mgpu.WGMMAAccumulatorRef.init(sums))
        return result
