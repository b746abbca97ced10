"""The portable implementation of `operations.Operations`."""

import jax.numpy as jnp

from rekindle_kernels.xla.attention import attend_blocks, attend_rows
from rekindle_kernels.xla.gate import gate
from rekindle_kernels.xla.linear import grouped_linear, linear, linear_columns, look_up, low_rank, pack, packed
from rekindle_kernels.xla.norm import layer_norm, rms_norm
from rekindle_kernels.xla.pages import empty, read_page, write, write_page
from rekindle_kernels.xla.rotary import rotate
from rekindle_kernels.xla.sampling import adjust, argmax, count_above, draw, mass, nth_largest
from rekindle_kernels.xla.states import convolve_blocks, convolve_rows, recur_blocks, recur_rows
from rekindle_kernels.xla.stored import pack_blocks


def unsupported_reason(shape: tuple[int, ...], dtype: jnp.dtype, weights: jnp.dtype | None = None) -> str | None:
    """See `Operations.unsupported_reason`. Pages may have any shape."""
    if dtype in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.uint16, jnp.int8):
        return None
    return "numbers must be float32, float16, int8, or bfloat16, which is stored as uint16"
