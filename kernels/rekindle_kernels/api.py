"""The operations on a page pool, attention among them: arguments checked, implementation chosen.

Every function takes an implementation by name. None is what `choose` says for the platform that this process runs on;
who compiles for another platform names the implementation, in `empty` and in everything done with its pages.
"""

import importlib
from typing import Final, Literal, cast, get_args

import jax
import jax.numpy as jnp

from rekindle_kernels.operations import Operations

Implementation = Literal["xla", "reference", "tpu", "gpu"]
"""xla runs everywhere; reference is the definition, in plain JAX; tpu and gpu are Pallas kernels."""

_MODULES: Final = {
    "xla": "rekindle_kernels.xla.operations",
    "reference": "rekindle_kernels.reference",
    "tpu": "rekindle_kernels.tpu.operations",
    "gpu": "rekindle_kernels.gpu.operations",
}
_PREFERRED: Final[dict[str, Implementation]] = {"tpu": "tpu", "gpu": "gpu", "cuda": "gpu"}


def choose(platform: str, shape: tuple[int, ...], dtype: jnp.dtype) -> Implementation:
    """The best implementation on a platform that serves a pool; "xla" where there is no better.

    Args:
        platform: "cpu", "gpu" or "tpu", as `jax.default_backend()` or a device names it.
        shape: (pages, 2, kv_heads, page_size, head_dim) of the pool.
        dtype: of the numbers in it.
    """
    preferred = _PREFERRED.get(platform, "xla")
    return preferred if unserved(preferred, shape, dtype) is None else "xla"


def unserved(implementation: Implementation, shape: tuple[int, ...], dtype: jnp.dtype) -> str | None:
    """Why an implementation cannot serve a pool of this shape and dtype; None where it can.

    Raises:
        ValueError: an unknown implementation.
    """
    return _load(implementation).unserved(shape, jnp.dtype(dtype))


def empty(shape: tuple[int, ...], dtype: jnp.dtype, *, implementation: Implementation | None = None) -> jax.Array:
    """A page pool of zeros, in the form that the implementation stores numbers of `dtype` in.

    Args:
        shape: (pages, 2, kv_heads, page_size, head_dim).
        dtype: float32 or bfloat16.
        implementation: the one that will read and write it.

    Returns:
        (pages, sides, kv_heads, page_size, width): as asked for, but that "xla" stores bfloat16 as its bits in uint16,
        and "tpu" whole lanes.

    Raises:
        ValueError: an unknown implementation, or one that cannot serve such a pool.
    """
    return _named(implementation, shape, jnp.dtype(dtype)).empty(shape, jnp.dtype(dtype))


def attend_rows(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Softmax attention of one query a row over the row's own pages: decoding.

    Args:
        q: (rows, heads, head_dim) float.
        pages: from `empty`, of `kv_heads` that divide `heads`.
        page_table: (rows, pages_per_row) int32; entries past the context may be anything.
        visible: (rows,) int32; a row sees the positions `[max(0, visible - window), visible)` of its sequence.
        scale: factor of the scores.
        window: how many positions a query sees at most; None for all.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; None leaves them.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (rows, heads, head_dim) float32; zeros for a row that sees nothing. What lies in the pages at positions that no
        query sees changes nothing, NaN included.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    rows = len(q)
    operations = _serving(implementation, pages)
    _check_attention(operations, q, pages, page_table, window, soft_cap)
    if len(page_table) != rows or visible.shape != (rows,):
        raise ValueError(
            f"for q {q.shape}, page_table must be ({rows}, pages) and visible ({rows},); "
            f"got {page_table.shape} and {visible.shape}"
        )
    return operations.attend_rows(q, pages, page_table, visible, scale=scale, window=window, soft_cap=soft_cap)


def attend_blocks(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    block_sequence: jax.Array,
    block_start: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Causal softmax attention of blocks of queries over their sequences' pages: prefill chunks, whose own keys and
    values are already in the pages, over a cached prefix and themselves.

    Args:
        q: (blocks, block_tokens, heads, head_dim) float. Blocks of one sequence that follow each other here follow each
            other in position.
        pages: from `empty`, of `kv_heads` that divide `heads`.
        page_table: (sequences, pages_per_sequence) int32; entries past the context may be anything.
        block_sequence: (blocks,) int32, the row of `page_table` that a block belongs to.
        block_start: (blocks,) int32, the position of a block's first token; negative for a block that sees nothing.
            Token t is at position `p = block_start + t` and sees `[max(0, p + 1 - window), p]`.
        scale: factor of the scores.
        window: how many positions a query sees at most; None for all.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; None leaves them.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (blocks, block_tokens, heads, head_dim) float32; zeros for a block that sees nothing. What lies in the pages at
        positions that no query of the sequence sees changes nothing, NaN included.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    blocks = len(q)
    operations = _serving(implementation, pages)
    _check_attention(operations, q[:, 0], pages, page_table, window, soft_cap)
    if block_sequence.shape != (blocks,) or block_start.shape != (blocks,):
        raise ValueError(
            f"for q {q.shape}, block_sequence and block_start must be ({blocks},); "
            f"got {block_sequence.shape} and {block_start.shape}"
        )
    return operations.attend_blocks(
        q, pages, page_table, block_sequence, block_start, scale=scale, window=window, soft_cap=soft_cap
    )


def write(
    pages: jax.Array,
    kv: jax.Array,
    page_ids: jax.Array,
    offsets: jax.Array,
    *,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Put each block's keys and values into its page.

    Args:
        pages: from `empty`; donate it to have it updated in place.
        kv: (blocks, 2, kv_heads, block_tokens, head_dim) float; a block never crosses a page.
        page_ids: (blocks,) int32; where several blocks name one place, any of them is kept. Blocks of fewer than 16
            tokens have a place of 16.
        offsets: (blocks,) int32, where in its page a block starts: a multiple of `block_tokens`.
        implementation: by name; None is the best for this process's platform.

    Returns:
        The pages with the blocks in them.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    operations = _serving(implementation, pages)
    _check_pages(operations, pages, kv.shape[-1])
    if kv.ndim != 5 or kv.shape[1:3] != (2, pages.shape[2]) or kv.shape[3] > pages.shape[3]:
        raise ValueError(f"blocks {kv.shape} do not fit pages {pages.shape}")
    if page_ids.shape != (len(kv),) or offsets.shape != (len(kv),):
        raise ValueError(f"{len(kv)} blocks need as many page ids and offsets, got {page_ids.shape}, {offsets.shape}")
    return operations.write(pages, kv, page_ids, offsets)


def read_page(pages: jax.Array, page_id: jax.Array, *, implementation: Implementation | None = None) -> jax.Array:
    """A copy of one page, in the pool's stored form.

    Args:
        pages: from `empty`.
        page_id: () int32, in the pool.
        implementation: by name; None is the best for this process's platform.

    Returns:
        An array of the shape of `pages[0]`, and of their dtype.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    operations = _serving(implementation, pages)
    _check_page(pages, page_id, pages.shape[1:], pages.dtype)
    return operations.read_page(pages, page_id)


def write_page(
    pages: jax.Array, page_id: jax.Array, content: jax.Array, *, implementation: Implementation | None = None
) -> jax.Array:
    """Put back what `read_page` gave, into the same page or another one.

    Args:
        pages: from `empty`; donate it to have it updated in place.
        page_id: () int32, in the pool.
        content: of the shape of `pages[0]`, and of their dtype.
        implementation: by name; None is the best for this process's platform.

    Returns:
        The pages with the content in one of them.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    operations = _serving(implementation, pages)
    _check_page(pages, page_id, content.shape, content.dtype)
    return operations.write_page(pages, page_id, content)


def _check_attention(
    operations: Operations,
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """`q` without the axis of a block's tokens."""
    _, heads, head_dim = q.shape
    _check_pages(operations, pages, head_dim)
    if heads % pages.shape[2]:
        raise ValueError(f"{heads} query heads cannot share {pages.shape[2]} key-value heads evenly")
    if page_table.ndim != 2:
        raise ValueError(f"page_table must be (sequences, pages), got {page_table.shape}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position, or None for all; got {window}")
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"soft_cap must be above 0, or None for no cap; got {soft_cap}")


def _check_page(pages: jax.Array, page_id: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    if page_id.shape != ():
        raise ValueError(f"page_id must be a scalar, got {page_id.shape}")
    if (shape, dtype) != (pages.shape[1:], pages.dtype):
        raise ValueError(f"a page of these pages is {pages.shape[1:]} {pages.dtype}, got {shape} {dtype}")


def _check_pages(operations: Operations, pages: jax.Array, head_dim: int) -> None:
    shape = (len(pages), 2, *pages.shape[2:4], head_dim)
    stored = jax.eval_shape(lambda: operations.empty(shape, pages.dtype)).shape
    if pages.shape != stored:
        raise ValueError(
            f"pages of head_dim {head_dim} must be {stored} here, as `empty` makes them; got {pages.shape}"
        )


def _serving(implementation: Implementation | None, pages: jax.Array) -> Operations:
    """The stored dtype may decide who can read the pages."""
    if pages.ndim != 5:
        raise ValueError(f"pages must be (pages, sides, kv_heads, page_size, width), got {pages.shape}")
    return _named(implementation, pages.shape, pages.dtype)


def _named(implementation: Implementation | None, shape: tuple[int, ...], dtype: jnp.dtype) -> Operations:
    if implementation is None:
        implementation = choose(jax.default_backend(), shape, dtype)
    operations = _load(implementation)
    if reason := operations.unserved(shape, dtype):
        raise ValueError(f'implementation "{implementation}" cannot serve pages {shape} {dtype}: {reason}')
    return operations


def _load(implementation: str) -> Operations:
    """Only when asked for: Pallas is slow to import, and a platform needs one implementation."""
    if implementation not in _MODULES:
        names = ", ".join(f'"{name}"' for name in get_args(Implementation))
        raise ValueError(f"implementation must be one of {names}, got {implementation!r}")
    return cast(Operations, importlib.import_module(_MODULES[implementation]))
