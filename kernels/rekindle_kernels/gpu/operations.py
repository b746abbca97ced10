"""The GPU implementation: Pallas kernels in the Triton lowering, for Ampere and later."""

import jax.numpy as jnp

from rekindle_kernels.gpu.attention import attend_blocks, attend_rows
from rekindle_kernels.gpu.pages import write
from rekindle_kernels.reference import empty
from rekindle_kernels.xla.gate import gate
from rekindle_kernels.xla.linear import grouped_linear, linear, linear_columns, look_up, low_rank, pack, packed
from rekindle_kernels.xla.norm import layer_norm, rms_norm
from rekindle_kernels.xla.pages import read_page, write_page  # XLA copies a page at the speed of memory
from rekindle_kernels.xla.rotary import rotate
from rekindle_kernels.xla.sampling import adjust, argmax, count_above, draw, mass, nth_largest
from rekindle_kernels.xla.states import convolve_blocks, convolve_rows, recur_blocks, recur_rows
from rekindle_kernels.xla.stored import pack_blocks


def unsupported_reason(shape: tuple[int, ...], dtype: jnp.dtype, weights: jnp.dtype | None = None) -> str | None:
    """See `Operations.unsupported_reason`."""
    if dtype not in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int8):
        return "numbers must be float32, bfloat16, float16 or int8"
    return None
