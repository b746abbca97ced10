"""Page tables of attention within chunks show each query the positions of its chunk, and no others."""

import jax.numpy as jnp
import numpy as np
import pytest

from rekindle_kernels.chunks import blocks_in_chunks, rows_in_chunks

pytestmark = pytest.mark.kernel

PAGE, CHUNK, BLOCK = 16, 32, 16
TABLE = np.arange(1, 13, dtype=np.int32).reshape(2, 6)


def places(pages: np.ndarray, positions: range) -> list[tuple[int, int]]:
    """Return the page and the place in it of each position."""
    return [(int(pages[position // PAGE]), position % PAGE) for position in positions]


def test_a_row_sees_its_chunk_up_to_its_own_position() -> None:
    visible = np.array([0, 1, 32, 33, 64, 96], np.int32)
    owners = np.array([0, 1, 0, 1, 0, 1])
    table, within = rows_in_chunks(jnp.asarray(TABLE[owners]), jnp.asarray(visible), CHUNK, PAGE)
    for owner, end, pages, count in zip(owners, visible, np.asarray(table), np.asarray(within), strict=True):
        start = max(end - 1, 0) // CHUNK * CHUNK
        assert places(pages, range(count)) == places(TABLE[owner], range(start, end))


def test_a_block_sees_its_chunk_and_shares_its_row_with_the_blocks_beside_it() -> None:
    owners = np.array([0, 0, 0, 0, 1, 1, 0], np.int32)
    starts = np.array([16, 32, 48, 64, 0, 16, -1], np.int32)
    table, rows, within = blocks_in_chunks(jnp.asarray(TABLE), jnp.asarray(owners), jnp.asarray(starts), CHUNK, PAGE)
    assert np.asarray(rows).tolist() == [0, 1, 1, 3, 4, 4, 6]
    for owner, start, row, first in zip(owners[:-1], starts, np.asarray(rows), np.asarray(within), strict=False):
        end = start + BLOCK
        expected = places(TABLE[owner], range(start // CHUNK * CHUNK, end))
        assert places(np.asarray(table)[row], range(first + BLOCK)) == expected
    assert np.asarray(within)[-1] == -1, "a padding block stays one"
