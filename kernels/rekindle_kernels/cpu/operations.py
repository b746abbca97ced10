"""The native implementation of `operations.Operations` for CPUs."""

import jax.numpy as jnp

from rekindle_kernels.cpu import library
from rekindle_kernels.cpu.attention import attend_blocks, attend_rows
from rekindle_kernels.cpu.gate import gate
from rekindle_kernels.cpu.linear import grouped_linear, linear, linear_columns, look_up, low_rank, pack, packed
from rekindle_kernels.cpu.norm import layer_norm, rms_norm
from rekindle_kernels.cpu.pages import empty, read_page, write, write_page
from rekindle_kernels.cpu.rotary import rotate
from rekindle_kernels.cpu.sampling import adjust, argmax, count_above, draw, mass, nth_largest
from rekindle_kernels.cpu.states import convolve_blocks, convolve_rows, recur_blocks, recur_rows
from rekindle_kernels.cpu.stored import pack_blocks


def unsupported_reason(shape: tuple[int, ...], dtype: jnp.dtype, weights: jnp.dtype | None = None) -> str | None:
    """See `Operations.unsupported_reason`. Pages may have any shape."""
    if weights == jnp.float16:
        return "weights must be float32 or bfloat16"
    if dtype not in (jnp.float32, jnp.bfloat16, jnp.uint16, jnp.int8):
        return "numbers must be float32, int8, or bfloat16, which is stored as uint16"
    return library.unavailable_reason()
