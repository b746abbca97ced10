"""Paged attention in portable XLA: an online softmax over tiles of pages, as many as the longest context needs.

CPU runs this one, and its constants are tuned there (2-core AVX-512, tests/bench). A tile balances the cost of a loop
iteration against the cache footprint of the gathered keys, which is small for a lone sequence. Sequences go through the
loop in groups, so that short contexts (other requests, or a prompt's first blocks) do not pay for the longest.
"""

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.xla.pages import unpack, value_dtype

TILE_TOKENS = 64
LONE_TILE_TOKENS = 256
GROUP = 8
MASKED = -1e30


def attend(q: jax.Array, pages: jax.Array, page_table: jax.Array, visible: jax.Array, scale: float) -> jax.Array:
    """See `api.attend`."""
    sequences, queries, heads, head_dim = q.shape
    kv_heads, page_size = pages.shape[2:4]
    rows = queries * (heads // kv_heads)
    grouped = jnp.moveaxis(q.reshape(sequences, queries, kv_heads, -1, head_dim), 2, 1)
    grouped = (grouped * scale).astype(value_dtype(pages)).reshape(sequences, kv_heads, rows, head_dim)
    row_visible = jnp.repeat(visible, heads // kv_heads, axis=1)
    tile_pages = max(1, (LONE_TILE_TOKENS if sequences == 1 else TILE_TOKENS) // page_size)
    page_table = jnp.pad(jnp.clip(page_table, 0, len(pages) - 1), ((0, 0), (0, -page_table.shape[1] % tile_pages)))

    def one_group(arguments: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return _online_softmax(*arguments, pages, tile_pages)

    arguments = (grouped, page_table, row_visible)
    if sequences <= GROUP or sequences % GROUP:
        out = one_group(arguments)
    else:
        out = lax.map(one_group, jax.tree.map(lambda x: x.reshape(-1, GROUP, *x.shape[1:]), arguments))
    out = out.reshape(sequences, kv_heads, queries, heads // kv_heads, head_dim)
    return jnp.moveaxis(out, 1, 2).reshape(sequences, queries, heads, head_dim)


def _online_softmax(
    q: jax.Array, page_table: jax.Array, visible: jax.Array, pages: jax.Array, tile_pages: int
) -> jax.Array:
    """One group's attention, by the online softmax of Milakov and Gimelshein, 2018 (arXiv:1805.02867).

    Shapes: q (sequences, kv_heads, rows, head_dim), visible (sequences, rows); the result is like q, in float32.
    """
    halves = pages.reshape(-1, *pages.shape[2:])
    tile = tile_pages * pages.shape[3]

    def gather(ids: jax.Array) -> jax.Array:
        found = jnp.moveaxis(halves.at[ids].get(mode="promise_in_bounds"), 1, 2)
        return unpack(found).reshape(len(q), q.shape[1], tile, q.shape[3])

    def body(step: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        peak, total, weighted = carry
        ids = 2 * lax.dynamic_slice_in_dim(page_table, step * tile_pages, tile_pages, 1)
        positions = step * tile + jnp.arange(tile, dtype=jnp.int32)
        scores = jnp.einsum("nhmd,nhsd->nhms", q, gather(ids), preferred_element_type=jnp.float32)
        scores = jnp.where((positions[None, None] < visible[:, :, None])[:, None], scores, MASKED)
        new_peak = jnp.maximum(peak, scores.max(-1))
        shrink = jnp.exp(peak - new_peak)
        weights = jnp.exp(scores - new_peak[..., None])
        values = gather(ids + 1)
        part = jnp.einsum("nhms,nhsd->nhmd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
        return new_peak, total * shrink + weights.sum(-1), weighted * shrink[..., None] + part

    start = (
        jnp.full(q.shape[:3], MASKED, jnp.float32),
        jnp.zeros(q.shape[:3], jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    _, total, weighted = lax.fori_loop(0, (visible.max() + tile - 1) // tile, body, start)
    seen = visible[:, None, :] > 0
    return jnp.where(seen[..., None], weighted / jnp.where(seen, total, 1.0)[..., None], 0.0)
