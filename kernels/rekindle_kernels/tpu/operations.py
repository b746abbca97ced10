"""The TPU implementation: Pallas kernels in the Mosaic lowering."""

import jax
import jax.numpy as jnp

from rekindle_kernels.tpu.blocks import attend_blocks
from rekindle_kernels.tpu.copies import read_page, write, write_page
from rekindle_kernels.tpu.form import LANES, stored_shape
from rekindle_kernels.tpu.rows import attend_rows
from rekindle_kernels.xla.gate import gate
from rekindle_kernels.xla.linear import grouped_linear, linear, linear_columns, look_up, low_rank, pack, packed
from rekindle_kernels.xla.norm import layer_norm, rms_norm
from rekindle_kernels.xla.rotary import rotate
from rekindle_kernels.xla.sampling import adjust, argmax, count_above, draw, mass, nth_largest
from rekindle_kernels.xla.states import convolve_blocks, convolve_rows, recur_blocks, recur_rows
from rekindle_kernels.xla.stored import pack_blocks


def unsupported_reason(shape: tuple[int, ...], dtype: jnp.dtype, weights: jnp.dtype | None = None) -> str | None:
    """See `Operations.unsupported_reason`."""
    if dtype not in (jnp.float32, jnp.bfloat16):
        return "numbers must be float32 or bfloat16"
    if shape[3] % 16:
        return f"a page must hold a multiple of 16 tokens, not {shape[3]}"
    if shape[4] % 8:
        return f"head_dim must be a multiple of 8, not {shape[4]}"
    if shape[1] == 1 and 2 * shape[4] <= LANES:
        return f"with a single side, head_dim must be more than {LANES // 2}, not {shape[4]}"
    return None


def empty(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """See `api.empty`. The shape is given by `form.stored_shape`."""
    return jnp.zeros(stored_shape(shape), dtype)
