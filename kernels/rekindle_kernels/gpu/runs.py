"""Runs: adjacent blocks of one tile of queries and one sequence. A run takes one pass over its keys."""

import jax
import jax.numpy as jnp
from jax import lax


def run_stops(sequences: jax.Array, starts: jax.Array, block_tokens: int, per_tile: int) -> jax.Array:
    """Return the end position of each block's run, (blocks,) int32; 0 unless the block begins a run.

    Args:
        sequences: (blocks,) int32, whole tiles.
        starts: (blocks,) int32, negative for a padding block.
        block_tokens: the tokens of a block.
        per_tile: the blocks of a tile.
    """
    sequences, starts = sequences.reshape(-1, per_tile), starts.reshape(-1, per_tile)
    follows = (sequences[:, 1:] == sequences[:, :-1]) & (starts[:, 1:] == starts[:, :-1] + block_tokens)
    follows &= starts[:, :-1] >= 0
    edge = jnp.zeros((len(starts), 1), bool)
    places = jnp.arange(per_tile, dtype=jnp.int32)[None]
    next_run = jnp.where(jnp.concatenate([follows, edge], axis=1), per_tile, places + 1)
    length = lax.cummin(next_run, axis=1, reverse=True) - places
    begins = ~jnp.concatenate([edge, follows], axis=1) & (starts >= 0)
    return jnp.where(begins, starts + length * block_tokens, 0).reshape(-1)


def last_pages(
    pages: jax.Array, page_table: jax.Array, sequences: jax.Array, starts: jax.Array, block_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Copy the last page of each sequence, with zeros after the last block: a weight of 0 would not hide a NaN there.

    Args:
        pages: from `api.empty`.
        page_table: see `api.attend_blocks`.
        sequences: (blocks,) int32.
        starts: (blocks,) int32, negative for a padding block.
        block_tokens: the tokens of a block.

    Returns:
        the place of each last page in its row of `page_table`, (sequences,) int32, and the copies, followed by a page
        of zeros.
    """
    page_size = pages.shape[3]
    ends = jnp.where(starts < 0, 0, starts + block_tokens)
    ends = jnp.zeros(len(page_table), jnp.int32).at[sequences].max(ends)
    last = lax.div(jnp.maximum(ends - 1, 0), page_size)
    page_ids = jnp.where(ends > 0, jnp.take_along_axis(page_table, last[:, None], axis=1)[:, 0], 0)
    positions = last[:, None] * page_size + jnp.arange(page_size, dtype=jnp.int32)[None]
    is_filled = (positions < ends[:, None])[:, None, None, :, None]
    copies = jnp.where(is_filled, pages[page_ids], 0)
    return last, jnp.concatenate([copies, jnp.zeros_like(pages[:1])])
