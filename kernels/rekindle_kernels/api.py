"""The operations on a page pool, attention among them: arguments checked, implementation chosen by name."""

from typing import Literal

import jax
import jax.numpy as jnp

from rekindle_kernels import reference
from rekindle_kernels.xla import attention as xla_attention
from rekindle_kernels.xla import pages as xla_pages

Implementation = Literal["xla", "reference"]


def empty(shape: tuple[int, ...], dtype: jnp.dtype, *, implementation: Implementation = "xla") -> jax.Array:
    """A page pool of zeros, in the form that the implementation stores numbers of `dtype` in.

    Args:
        shape: (pages, 2, kv_heads, page_size, head_dim).
        dtype: float32 or bfloat16.
        implementation: the one that will read and write it.
    """
    return xla_pages.empty(shape, dtype) if _is_xla(implementation) else jnp.zeros(shape, dtype)


def attend(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    scale: float,
    implementation: Implementation = "xla",
) -> jax.Array:
    """Softmax attention of each sequence's queries over the sequence's own pages.

    Args:
        q: (sequences, queries, heads, head_dim) float; one query a sequence when decoding, a block of them in prefill.
        pages: (pages, 2, kv_heads, page_size, head_dim); keys at index 0 of the second axis, values at 1.
        page_table: (sequences, pages_per_sequence) int32; entries past the context may be anything.
        visible: (sequences, queries) int32; each query sees the positions `[0, visible)` of its sequence.
        scale: factor of the scores.
        implementation: "xla" runs everywhere; "reference" is the definition.

    Returns:
        (sequences, queries, heads, head_dim) float32; zeros for a query that sees nothing.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    sequences, queries, heads, head_dim = q.shape
    _check_pages(pages, head_dim)
    if heads % pages.shape[2]:
        raise ValueError(f"{heads} query heads cannot share {pages.shape[2]} key-value heads evenly")
    if page_table.ndim != 2 or len(page_table) != sequences or visible.shape != (sequences, queries):
        raise ValueError(
            f"for q {q.shape}, page_table must be ({sequences}, pages) and visible ({sequences}, {queries}); "
            f"got {page_table.shape} and {visible.shape}"
        )
    if _is_xla(implementation):
        return xla_attention.attend(q, pages, page_table, visible, scale)
    return reference.attend(q, pages, page_table, visible, scale)


def write(
    pages: jax.Array,
    kv: jax.Array,
    page_ids: jax.Array,
    offsets: jax.Array,
    *,
    implementation: Implementation = "xla",
) -> jax.Array:
    """Put each block's keys and values into its page.

    Args:
        pages: (pages, 2, kv_heads, page_size, head_dim) from `empty`; donate it to have it updated in place.
        kv: (blocks, 2, kv_heads, block_tokens, head_dim) float; a block never crosses a page.
        page_ids: (blocks,) int32; where several blocks name one place, any of them is kept.
        offsets: (blocks,) int32, where in its page a block starts.

    Returns:
        The pages with the blocks in them.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check_pages(pages, kv.shape[-1])
    if kv.ndim != 5 or kv.shape[1:3] != pages.shape[1:3] or kv.shape[3] > pages.shape[3]:
        raise ValueError(f"blocks {kv.shape} do not fit pages {pages.shape}")
    if page_ids.shape != (len(kv),) or offsets.shape != (len(kv),):
        raise ValueError(f"{len(kv)} blocks need as many page ids and offsets, got {page_ids.shape}, {offsets.shape}")
    if _is_xla(implementation):
        return xla_pages.write(pages, kv, page_ids, offsets)
    return reference.write(pages, kv, page_ids, offsets)


def read_page(pages: jax.Array, page_id: jax.Array, *, implementation: Implementation = "xla") -> jax.Array:
    """A copy of one page, in the pool's stored form.

    Args:
        pages: (pages, 2, kv_heads, page_size, head_dim) from `empty`.
        page_id: () int32, in the pool.
        implementation: "xla" or "reference".

    Returns:
        (2, kv_heads, page_size, head_dim) of the dtype of `pages`.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check_page(pages, page_id, pages.shape[1:], pages.dtype)
    if _is_xla(implementation):
        return xla_pages.read_page(pages, page_id)
    return reference.read_page(pages, page_id)


def write_page(
    pages: jax.Array, page_id: jax.Array, content: jax.Array, *, implementation: Implementation = "xla"
) -> jax.Array:
    """Put back what `read_page` gave, into the same page or another one.

    Args:
        pages: (pages, 2, kv_heads, page_size, head_dim) from `empty`; donate it to have it updated in place.
        page_id: () int32, in the pool.
        content: (2, kv_heads, page_size, head_dim) of the dtype of `pages`.
        implementation: "xla" or "reference".

    Returns:
        The pages with the content in one of them.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or an unknown implementation.
    """
    _check_page(pages, page_id, content.shape, content.dtype)
    if _is_xla(implementation):
        return xla_pages.write_page(pages, page_id, content)
    return reference.write_page(pages, page_id, content)


def _check_page(pages: jax.Array, page_id: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    _check_pages(pages, pages.shape[-1])
    if page_id.shape != ():
        raise ValueError(f"page_id must be a scalar, got {page_id.shape}")
    if (shape, dtype) != (pages.shape[1:], pages.dtype):
        raise ValueError(f"a page of these pages is {pages.shape[1:]} {pages.dtype}, got {shape} {dtype}")


def _check_pages(pages: jax.Array, head_dim: int) -> None:
    if pages.ndim != 5 or pages.shape[1] != 2 or pages.shape[4] != head_dim:
        raise ValueError(f"pages must be (pages, 2, kv_heads, page_size, {head_dim}), got {pages.shape}")


def _is_xla(implementation: str) -> bool:
    if implementation not in ("xla", "reference"):
        raise ValueError(f'implementation must be "xla" or "reference", got {implementation!r}')
    return implementation == "xla"
