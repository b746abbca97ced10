"""Attention within chunks of positions (Llama 4), by page tables that begin at each query's chunk.

Positions in a chunk are counted from its start, which is the start of a page. Keys in the pages are rotated already, so
no score depends on the counting.
"""

import jax
import jax.numpy as jnp
from jax import lax


def rows_in_chunks(table: jax.Array, visible: jax.Array, chunk: int, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Return the page table and the visible positions of decode rows within their chunks.

    Args:
        table: (rows, pages) int32.
        visible: (rows,) int32, 0 for a padding row.
        chunk: the size of chunks, a multiple of `page_size`.
        page_size: the tokens of a page.
    """
    start = jnp.maximum(visible - 1, 0) // chunk * chunk
    return _from_page(table, start // page_size), visible - start


def blocks_in_chunks(
    table: jax.Array, owners: jax.Array, starts: jax.Array, chunk: int, page_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the page table, its row for each block, and the starts of blocks, within their chunks.

    Blocks of one chunk of a request have the same row; a block lies in a single chunk.

    Args:
        table: (slots, pages) int32.
        owners: (blocks,) int32, each block's row of `table`.
        starts: (blocks,) int32, the position of each block's first token; negative for a padding block.
        chunk: the size of chunks, a multiple of `page_size` and of the block.
        page_size: the tokens of a page.
    """
    first, index = jnp.maximum(starts, 0) // chunk * chunk, jnp.arange(len(starts), dtype=jnp.int32)
    continues = (owners[1:] == owners[:-1]) & (first[1:] == first[:-1])
    is_new = jnp.concatenate([jnp.ones(1, bool), ~continues])
    rows = lax.cummax(jnp.where(is_new, index, 0))
    return _from_page(table[owners], first // page_size), rows, jnp.where(starts < 0, starts, starts - first)


def _from_page(table: jax.Array, first: jax.Array) -> jax.Array:
    """Return the rows of a table from these pages on; entries past the last page repeat it."""
    pages = table.shape[1]
    columns = jnp.minimum(jnp.arange(pages)[None] + first[:, None], pages - 1)
    return jnp.take_along_axis(table, columns, axis=1)
