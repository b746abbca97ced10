"""Paged attention in portable XLA: an online softmax over tiles of pages, up to the longest context.

The constants are tuned for CPUs (2-core AVX-512, tests/bench). The size of a tile balances the cost of a loop iteration
against the cache footprint of the gathered keys, small for a single sequence. The loop runs over groups of sequences,
so that short contexts do not pay for the longest one.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.xla.pages import unpack, value_dtype

TILE_TOKENS = 64
LONE_TILE_TOKENS = 256
GROUP = 8
MASKED = -1e30


def attend_rows(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """See `api.attend_rows`."""
    rules = Rules(scale, window, soft_cap, sinks)
    return _attend(q[:, None], pages, page_table, visible[:, None], rules)[:, 0]


def attend_blocks(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    block_sequence: jax.Array,
    block_start: jax.Array,
    visible_until: jax.Array | None,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """See `api.attend_blocks`."""
    visible = block_start[:, None] + 1 + jnp.arange(q.shape[1], dtype=jnp.int32)[None]
    visible = jnp.where(block_start[:, None] < 0, 0, visible)
    until = None if visible_until is None else jnp.where(visible > 0, visible_until, 0)
    return _attend(q, pages, page_table[block_sequence], visible, Rules(scale, window, soft_cap, sinks, bias), until)


class Rules(NamedTuple):
    """The parameters of `api.attend_rows` for scores and visible positions."""

    scale: float
    window: int | None
    soft_cap: float | None
    sinks: jax.Array | None
    bias: jax.Array | None = None


def _attend(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    rules: Rules,
    until: jax.Array | None = None,
) -> jax.Array:
    """Compute attention of each query over the positions `[visible - window, until)` of its sequence.

    Shapes: q and the result (sequences, queries, heads, head_dim), visible and until (sequences, queries). Without
    `until`, it is `visible`.
    """
    sequences, queries, heads, head_dim = q.shape
    kv_heads, page_size = pages.shape[2:4]
    rows = queries * (heads // kv_heads)
    grouped = jnp.moveaxis(q.reshape(sequences, queries, kv_heads, -1, head_dim), 2, 1)
    grouped = (grouped * rules.scale).astype(value_dtype(pages)).reshape(sequences, kv_heads, rows, head_dim)
    ends = [jnp.repeat(each, heads // kv_heads, axis=1) for each in (visible, until) if each is not None]
    tile_pages = max(1, (LONE_TILE_TOKENS if sequences == 1 else TILE_TOKENS) // page_size)
    page_table = jnp.pad(jnp.clip(page_table, 0, len(pages) - 1), ((0, 0), (0, -page_table.shape[1] % tile_pages)))

    def one_group(arguments: tuple[jax.Array, ...]) -> jax.Array:
        grouped, page_table, row_visible, *row_until = arguments
        return _online_softmax(grouped, page_table, row_visible, pages, tile_pages, rules, *row_until)

    arguments = (grouped, page_table, *ends)
    if sequences <= GROUP or sequences % GROUP:
        out = one_group(arguments)
    else:
        out = lax.map(one_group, jax.tree.map(lambda x: x.reshape(-1, GROUP, *x.shape[1:]), arguments))
    out = out.reshape(sequences, kv_heads, queries, heads // kv_heads, head_dim)
    return jnp.moveaxis(out, 1, 2).reshape(sequences, queries, heads, head_dim)


def _summands(bias: jax.Array, distances: jax.Array, kv_heads: int) -> jax.Array:
    """Return the summands of scores, (sequences, kv_heads, rows, tile).

    Args:
        bias: see `api.attend_blocks`.
        distances: (sequences, rows, tile) int32, of positions from the rows' own; rows of a query are adjacent, one for
            each head of a KV head.
    """
    farthest, group = bias.shape[1] // 2, len(bias) // kv_heads
    places = jnp.clip(distances, -farthest, farthest) + farthest
    heads = jnp.arange(kv_heads)[:, None] * group + jnp.arange(distances.shape[1])[None] % group
    return bias[heads[None, :, :, None], places[:, None]]


def _product_over(pages: jax.Array) -> Callable[..., jax.Array]:
    """Return an einsum with sums in float32; over float32 pages a GPU would round its operands to TF32 by default."""
    precision = lax.Precision.HIGHEST if pages.dtype == jnp.float32 else None
    return partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)


def _online_softmax(
    q: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    pages: jax.Array,
    tile_pages: int,
    rules: Rules,
    until: jax.Array | None = None,
) -> jax.Array:
    """Compute one group's attention, by the online softmax of Milakov and Gimelshein, 2018 (arXiv:1805.02867).

    Shapes: q (sequences, kv_heads, rows, head_dim), visible and until (sequences, rows); the result is like q, in
    float32.
    """
    sides, halves = pages.shape[1], pages.reshape(-1, *pages.shape[2:])
    tile = tile_pages * pages.shape[3]
    own = visible - 1
    first = jnp.zeros_like(visible) if rules.window is None else jnp.maximum(visible - rules.window, 0)
    visible = visible if until is None else until
    first_of_all, last_of_all = jnp.where(visible > 0, first, visible.max()).min(1), visible.max(1)

    multiply = _product_over(pages)

    def gather(ids: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Return numbers (sequences, kv_heads, tile, head_dim), and the factor of each position, or None."""
        tiles = jnp.moveaxis(halves.at[ids].get(mode="promise_in_bounds"), 1, 2)
        return unpack(tiles.reshape(len(q), q.shape[1], tile, -1))

    def body(step: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        peak, total, weighted = carry
        ids = sides * lax.dynamic_slice_in_dim(page_table, step * tile_pages, tile_pages, 1)
        positions = step * tile + jnp.arange(tile, dtype=jnp.int32)
        keys, factors = gather(ids)
        scores = multiply("nhmd,nhsd->nhms", q, keys)
        if factors is not None:
            scores *= factors[:, :, None]
        if rules.soft_cap is not None:
            scores = rules.soft_cap * jnp.tanh(scores / rules.soft_cap)
        if rules.bias is not None:
            scores += _summands(rules.bias, positions[None, None] - own[:, :, None], q.shape[1])
        mask = positions[None, None] < visible[:, :, None]
        if rules.window is not None:
            mask &= positions[None, None] >= first[:, :, None]
        scores = jnp.where(mask[:, None], scores, MASKED)
        new_peak = jnp.maximum(peak, scores.max(-1))
        shrink = jnp.exp(peak - new_peak)
        weights = jnp.exp(scores - new_peak[..., None])
        # A weight of 0 would not hide a NaN of the page's earlier owner.
        valid = positions[None] < last_of_all[:, None]
        if rules.window is not None:
            valid &= positions[None] >= first_of_all[:, None]
        values, factors = gather(ids + sides - 1)
        values, sums = jnp.where(valid[:, None, :, None], values, 0), weights.sum(-1)
        if factors is not None:
            weights *= jnp.where(valid[:, None, None], factors[:, :, None], 0.0)
        part = multiply("nhms,nhsd->nhmd", weights.astype(values.dtype), values)
        return new_peak, total * shrink + sums, weighted * shrink[..., None] + part

    start = (
        jnp.full(q.shape[:3], MASKED, jnp.float32),
        jnp.zeros(q.shape[:3], jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    begin = 0 if rules.window is None else first_of_all.min() // tile
    peak, total, weighted = lax.fori_loop(begin, (visible.max() + tile - 1) // tile, body, start)
    if rules.sinks is not None:
        of_rows = jnp.tile(
            rules.sinks.reshape(q.shape[1], 1, -1), (1, q.shape[2] // (len(rules.sinks) // q.shape[1]), 1)
        )
        total += jnp.exp(of_rows.reshape(1, *q.shape[1:3]) - peak)
    any_visible = visible[:, None, :] > 0
    return jnp.where(any_visible[..., None], weighted / jnp.where(any_visible, total, 1.0)[..., None], 0.0)
