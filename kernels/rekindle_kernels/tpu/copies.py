"""Writes of keys and values into pages, and copies of pages, on TPU: asynchronous and in place."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rekindle_kernels.tpu.form import pack, page_bytes, sublanes
from rekindle_kernels.tpu.stream import Ref
from rekindle_kernels.tpu.tuning import tuning
from rekindle_kernels.xla import pages as xla

Copy = Any
"""Asynchronous copy, with `start` and `wait`; Pallas has no public type for it."""

IN_FLIGHT = 8
"""The number of block copies in flight at the same time."""

HBM = pl.BlockSpec(memory_space=pl.ANY)


def write(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    """See `api.write`.

    Cost of a block of T tokens, with `page_bytes / page_size` bytes per stored token and R rows per memory tile
    (`form.sublanes`): if T is a multiple of R, T tokens are read and written. If T is smaller, R tokens are read twice
    (from the block and from the page) and written once, because R is the smallest addressable unit. Other blocks are
    written by XLA's scatter.
    """
    tokens, rows = kv.shape[3], sublanes(pages.dtype)
    kv = pack(kv, pages)
    if tokens % rows == 0:
        return _write_whole(pages, kv, jnp.where(_has_successor(page_ids, offsets), -1, page_ids), offsets)
    if rows % tokens == 0 and pages.shape[3] % rows == 0:
        return _write_small(pages, kv, page_ids, offsets)
    return xla.write(pages, kv, page_ids, offsets)


def _has_successor(page_ids: jax.Array, places: jax.Array) -> jax.Array:
    """Return (blocks,) bool, whether a later block goes to the same place. Two copies to one place would race."""
    same = (page_ids[:, None] == page_ids[None]) & (places[:, None] == places[None])
    return jnp.triu(same, 1).any(1)


def _write_whole(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    return _in_place(
        functools.partial(_whole_kernel, kv.shape[3]),
        (page_ids, offsets),
        (kv, pages),
        [pltpu.SemaphoreType.DMA((IN_FLIGHT,))],
        2 * kv.nbytes,
        "rekindle_write_blocks",
    )


def _whole_kernel(tokens: int, page_ids: Ref, offsets: Ref, kv: Ref, _: Ref, pages: Ref, done: Ref) -> None:
    """Copy each block from HBM to HBM, several at a time; blocks of page -1 are skipped."""
    blocks, rows = kv.shape[0], sublanes(pages.dtype)

    def copy(block: jax.Array) -> Copy:
        place = pl.ds(pl.multiple_of(offsets[block], rows), tokens)
        to = pages.at[page_ids[block], :, :, place]
        return pltpu.make_async_copy(kv.at[block], to, done.at[lax.rem(block, IN_FLIGHT)])

    def one(step: jax.Array, carry: None) -> None:
        earlier = step - IN_FLIGHT

        @pl.when((earlier >= 0) & (page_ids[jnp.maximum(earlier, 0)] >= 0))
        def finish() -> None:
            copy(earlier).wait()

        @pl.when((step < blocks) & (page_ids[jnp.minimum(step, blocks - 1)] >= 0))
        def start() -> None:
            copy(step).start()

    lax.fori_loop(0, blocks + IN_FLIGHT, one, None)


def _merged(kv: jax.Array, page_ids: jax.Array, offsets: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """Merge the blocks within each aligned slice of `rows` positions, such as the successive tokens of a draft.

    Returns:
        kv with `rows` tokens per block, and a bit for each part of a slice with a block, (blocks,) int32.
    """
    blocks, tokens = len(kv), kv.shape[3]
    same = (page_ids[:, None] == page_ids[None]) & (offsets[:, None] // rows == offsets[None] // rows)
    parts = jnp.arange(rows // tokens, dtype=jnp.int32)
    here = same[:, None] & ((offsets % rows // tokens)[None, None] == parts[None, :, None])  # (blocks, parts, blocks)
    source = jnp.where(here, jnp.arange(1, blocks + 1, dtype=jnp.int32), 0).max(2)
    merged = jnp.moveaxis(kv[jnp.maximum(source - 1, 0)], 1, 3)
    bits = jnp.left_shift((source > 0).astype(jnp.int32), parts[None]).sum(1)
    return merged.reshape(*kv.shape[:3], rows, kv.shape[4]), bits


def _write_small(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    rows = sublanes(pages.dtype)
    # A slice is complete before the kernel, which then selects its rows without shuffles within a register.
    merged, parts = _merged(kv, page_ids, offsets, rows)
    page_ids = jnp.where(_has_successor(page_ids, offsets // rows), -1, page_ids)
    changed = (*pages.shape[1:3], rows, pages.shape[4])
    size = page_bytes(pages) // pages.shape[3] * rows
    at_once = max(1, min(len(kv), tuning().write_bytes // size))
    spare = -len(kv) % at_once
    page_ids = jnp.pad(page_ids, (0, spare), constant_values=-1)
    return _in_place(
        functools.partial(_small_kernel, kv.shape[3], at_once),
        (page_ids, jnp.pad(offsets, (0, spare)), jnp.pad(parts, (0, spare))),
        (jnp.pad(merged, ((0, spare), *((0, 0),) * 4)), pages),
        [
            pltpu.VMEM((at_once, *changed), pages.dtype),
            pltpu.VMEM((at_once, *changed), pages.dtype),
            pltpu.SemaphoreType.DMA((3,)),
        ],
        3 * len(kv) * size,
        "rekindle_write_tokens",
    )


def _small_kernel(
    tokens: int,
    at_once: int,
    page_ids: Ref,
    offsets: Ref,
    parts: Ref,
    kv: Ref,
    _: Ref,
    pages: Ref,
    new: Ref,
    slices: Ref,
    done: Ref,
) -> None:
    """Read, change and write back the blocks' aligned slices; blocks of page -1 are skipped."""
    rows = sublanes(pages.dtype)

    def one_group(group: jax.Array, _: None) -> None:
        base = group * at_once

        def place(block: jax.Array) -> Ref:
            start = pl.multiple_of(lax.div(offsets[base + block], jnp.int32(rows)) * rows, rows)
            return pages.at[page_ids[base + block], :, :, pl.ds(start, rows)]

        def read_copy(block: jax.Array) -> Copy:
            return pltpu.make_async_copy(place(block), slices.at[block], done.at[1])

        def write_copy(block: jax.Array) -> Copy:
            return pltpu.make_async_copy(slices.at[block], place(block), done.at[2])

        def change(block: jax.Array) -> None:
            part = lax.div(lax.broadcasted_iota(jnp.int32, slices.shape[1:], 2), jnp.int32(tokens))
            mask = lax.shift_right_logical(parts[base + block], part) & 1 > 0
            slices[block] = jnp.where(mask, new[block], slices[block])

        each = functools.partial(_for_each, at_once, lambda block: page_ids[base + block] >= 0)
        block_copy = pltpu.make_async_copy(kv.at[pl.ds(base, at_once)], new, done.at[0])
        block_copy.start()
        each(lambda block: read_copy(block).start())
        block_copy.wait()
        each(lambda block: read_copy(block).wait())
        each(change)
        each(lambda block: write_copy(block).start())
        each(lambda block: write_copy(block).wait())

    lax.fori_loop(0, kv.shape[0] // at_once, one_group, None)


def _for_each(count: int, condition: Callable[[jax.Array], jax.Array], act: Callable[[jax.Array], None]) -> None:
    def one(block: jax.Array, _: None) -> None:
        pl.when(condition(block))(lambda: act(block))

    lax.fori_loop(0, count, one, None)


def read_page(pages: jax.Array, page_id: jax.Array) -> jax.Array:
    """See `api.read_page`. Cost: one page is read and written; nothing is computed."""
    content: jax.Array = pl.pallas_call(
        _read_kernel,
        out_shape=jax.ShapeDtypeStruct(pages.shape[1:], pages.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[HBM],
            out_specs=HBM,
            scratch_shapes=[pltpu.SemaphoreType.DMA(())],
        ),
        cost_estimate=_copy_cost(2 * page_bytes(pages)),
        name="rekindle_read_page",
    )(page_id[None], pages)
    return content


def _read_kernel(page_id: Ref, pages: Ref, content: Ref, done: Ref) -> None:
    pltpu.async_copy(pages.at[page_id[0]], content, done).wait()


def write_page(pages: jax.Array, page_id: jax.Array, content: jax.Array) -> jax.Array:
    """See `api.write_page`. Cost: one page is read and written; nothing is computed."""
    moved_bytes = 2 * page_bytes(pages)
    semaphores = [pltpu.SemaphoreType.DMA(())]
    return _in_place(_write_kernel, (page_id[None],), (content, pages), semaphores, moved_bytes, "rekindle_write_page")


def _write_kernel(page_id: Ref, content: Ref, _: Ref, pages: Ref, done: Ref) -> None:
    pltpu.async_copy(content, pages.at[page_id[0]], done).wait()


def _in_place(
    kernel: Callable[..., None],
    scalars: tuple[jax.Array, ...],
    arrays: tuple[jax.Array, jax.Array],
    scratch: list[Any],
    moved_bytes: int,
    name: str,
) -> jax.Array:
    """Run a kernel on two arrays in HBM, the second of which is the pool; return the pool, in the same memory."""
    pages = arrays[-1]
    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(pages.shape, pages.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars), grid=(1,), in_specs=[HBM, HBM], out_specs=HBM, scratch_shapes=scratch
        ),
        input_output_aliases={len(scalars) + len(arrays) - 1: 0},
        cost_estimate=_copy_cost(moved_bytes),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=tuning().vmem_limit_bytes),
        name=name,
    )(*scalars, *arrays)
    return result


def _copy_cost(size: int) -> pl.CostEstimate:
    return pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=size)
