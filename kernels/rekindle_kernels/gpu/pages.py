"""Writes of new keys and values into the pages on GPU."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from rekindle_kernels.gpu.refs import Ref, columns_of, load, padded, store, within
from rekindle_kernels.gpu.target import current
from rekindle_kernels.xla import scaled


def write(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    """See `api.write`. It works in place if `pages` is donated.

    XLA's scatter is slower: it updates bfloat16 by compare and swap, because two blocks might go to one place.

    Cost: each block is read and written once, kv.size * (kv.itemsize + pages.itemsize) bytes. XLA makes rows of int8
    before.
    """
    kv = scaled.quantize(kv) if pages.dtype == jnp.int8 else kv
    blocks = len(kv)
    halves = kv.shape[1] * kv.shape[2]
    result: jax.Array = pl.pallas_call(
        _write_block,
        grid=(halves, blocks),
        out_shape=jax.ShapeDtypeStruct(pages.shape, pages.dtype),
        input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(num_warps=1 if kv.shape[3] == 1 else 4, num_stages=1),
        cost_estimate=pl.CostEstimate(
            flops=0, bytes_accessed=kv.nbytes + kv.size * pages.dtype.itemsize, transcendentals=0
        ),
        interpret=current().interpret,
        name="write",
    )(pages, kv, page_ids, offsets)
    return result


def _write_block(_: Ref, kv_ref: Ref, page_ref: Ref, offset_ref: Ref, pages_ref: Ref) -> None:
    """Write the keys or the values of one head of one block."""
    half, block = pl.program_id(0), pl.program_id(1)
    kind, head = half // kv_ref.shape[2], half % kv_ref.shape[2]
    tokens = jnp.arange(padded(kv_ref.shape[3]), dtype=jnp.int32)[:, None]
    columns = columns_of(kv_ref.shape[4])
    mask = within(columns, kv_ref.shape[4], tokens < kv_ref.shape[3])
    content = load(kv_ref, block, kind, head, tokens, columns, mask=mask).astype(pages_ref.dtype)
    place = (page_ref[block], kind, head, offset_ref[block] + tokens, columns)
    store(pages_ref, *place, value=content, mask=mask)
