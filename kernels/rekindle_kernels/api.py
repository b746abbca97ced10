"""The operations on a page pool, attention among them: arguments are checked, and the implementation is chosen.

Every function takes an implementation by name. None stands for the one that `choose` returns for this process's
platform. Code that compiles for another platform names the implementation in every call.
"""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal, cast, get_args

import jax
import jax.numpy as jnp

from rekindle_kernels.operations import Operations

Implementation = Literal["xla", "reference", "cpu", "tpu", "gpu"]
"""The implementations: xla runs everywhere, reference is the definition, cpu is C++, tpu and gpu are Pallas kernels."""

_MODULES: Final = {
    "xla": "rekindle_kernels.xla.operations",
    "reference": "rekindle_kernels.reference",
    "cpu": "rekindle_kernels.cpu.operations",
    "tpu": "rekindle_kernels.tpu.operations",
    "gpu": "rekindle_kernels.gpu.operations",
}
_PREFERRED: Final[dict[str, Implementation]] = {"cpu": "cpu", "tpu": "tpu", "gpu": "gpu", "cuda": "gpu"}


def choose(
    platform: str, shape: tuple[int, ...], dtype: jnp.dtype, asked: Implementation | None = None
) -> Implementation:
    """Return the best implementation on a platform that can serve a pool; "xla" if there is no better one.

    Args:
        platform: "cpu", "gpu" or "tpu", as `jax.default_backend()` or a device names it.
        shape: (pages, sides, kv_heads, page_size, head_dim) of the pool; see `empty`.
        dtype: of the numbers in it.
        asked: the one to take instead, if it can serve the pool there.

    Raises:
        ValueError: the implementation that was asked for is unknown, or cannot serve such a pool there.
    """
    preferred = _PREFERRED.get(platform, "xla")
    if asked is None:
        return preferred if unserved(preferred, shape, dtype) is None else "xla"
    reason = unserved(asked, shape, dtype)
    if asked in _PREFERRED.values() and asked != preferred:
        reason = f"its kernels do not run on {platform}"
    if reason is not None:
        raise ValueError(f'implementation "{asked}" cannot serve pages {shape} {dtype} on {platform}: {reason}')
    return asked


def unserved(implementation: Implementation, shape: tuple[int, ...], dtype: jnp.dtype) -> str | None:
    """Return why an implementation cannot serve a pool of this shape and dtype, or None if it can.

    Raises:
        ValueError: an unknown implementation.
    """
    return operations_of(implementation).unserved(shape, jnp.dtype(dtype))


def described(
    implementation: Implementation,
    platform: str,
    shape: tuple[int, ...],
    dtype: jnp.dtype,
    asked: Implementation | None = None,
) -> str:
    """Return in words which kernels serve a pool: "cpu kernels (avx2)", or "xla kernels (...)" with why no others do.

    Args:
        implementation: the one that `choose` returned for the other arguments, which are as it takes them.
    """
    reason = None
    if implementation == "cpu":
        reason = library_of(implementation).partition(" ")[0]
    elif asked is None and (preferred := _PREFERRED.get(platform)) not in (None, implementation):
        reason = unserved(preferred, shape, dtype)
    return f"{implementation} kernels" + (f" ({reason})" if reason else "")


def keeps_rows_apart(implementation: Implementation) -> bool:
    """Return whether all operations give a row the same bits, whatever rows are computed beside it, and how many."""
    return implementation == "cpu"


def library_of(implementation: Implementation) -> str:
    """Return the compiled library that an implementation's programs call: its instruction set, and its file's SHA-256.

    It is loaded first, so that programs that were compiled by another process find its functions. The implementations
    without a library have "" instead.

    Raises:
        RuntimeError: there is no library in this process; the message says why.
    """
    if implementation != "cpu":
        return ""
    library = importlib.import_module("rekindle_kernels.cpu.library")
    return f"{library.instruction_set()} {library.digest()}"


def empty(shape: tuple[int, ...], dtype: jnp.dtype, *, implementation: Implementation | None = None) -> jax.Array:
    """Create a page pool in which nothing is written, in the form in which the implementation stores such numbers.

    Args:
        shape: (pages, sides, kv_heads, page_size, head_dim), with a side for keys and one for values, or a single one
            for keys that are values too, as those of latent attention are.
        dtype: float32 or bfloat16.
        implementation: the one that will read and write it.

    Returns:
        (pages, stored sides, kv_heads, page_size, width), which is `shape` but for "tpu" (see `tpu.form`). The dtype is
        `dtype`, but "xla" and "cpu" store the bits of bfloat16 in uint16. What is not written holds any numbers.

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
    sinks: jax.Array | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Compute softmax attention of one query a row over the row's own pages, for decoding.

    Args:
        q: (rows, heads, head_dim) float.
        pages: from `empty`; `kv_heads` must divide `heads`.
        page_table: (rows, pages_per_row) int32; entries past the context may be anything.
        visible: (rows,) int32; a row sees the positions `[max(0, visible - window), visible)` of its sequence.
        scale: factor of the scores.
        window: the most positions that a query sees; None for all.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; None leaves them unchanged.
        sinks: (heads,) float, the score of one more position that each query of a head sees, whose values are zeros
            (Xiao et al., 2023, arXiv:2309.17453); None for no such position.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (rows, heads, head_dim) float32; zeros for a row that sees nothing. Numbers in the pages at positions that no
        query sees have no effect, not even NaN.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    rows = len(q)
    operations = _serving(implementation, pages)
    _check_attention(operations, q, pages, page_table, window, soft_cap, sinks)
    if len(page_table) != rows or visible.shape != (rows,):
        raise ValueError(
            f"for q {q.shape}, page_table must be ({rows}, pages) and visible ({rows},); "
            f"got {page_table.shape} and {visible.shape}"
        )
    return operations.attend_rows(
        q, pages, page_table, visible, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks
    )


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
    sinks: jax.Array | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Compute causal softmax attention of blocks of queries over their sequences' pages, for prefill.

    The keys and values of the blocks must be in the pages already, behind those of a cached prefix.

    Args:
        q: (blocks, block_tokens, heads, head_dim) float. Adjacent blocks of one sequence must be adjacent in position.
        pages: from `empty`; `kv_heads` must divide `heads`.
        page_table: (sequences, pages_per_sequence) int32; entries past the context may be anything.
        block_sequence: (blocks,) int32, the row of `page_table` that a block belongs to.
        block_start: (blocks,) int32, the position of a block's first token; negative for a block that sees nothing.
            Token t is at position `p = block_start + t` and sees `[max(0, p + 1 - window), p]`.
        scale: factor of the scores.
        window: the most positions that a query sees; None for all.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; None leaves them unchanged.
        sinks: (heads,) float, the score of one more position that each query of a head sees, whose values are zeros
            (Xiao et al., 2023, arXiv:2309.17453); None for no such position.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (blocks, block_tokens, heads, head_dim) float32; zeros for a block that sees nothing. Numbers in the pages at
        positions that no query of the sequence sees have no effect, not even NaN.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    blocks = len(q)
    operations = _serving(implementation, pages)
    _check_attention(operations, q[:, 0], pages, page_table, window, soft_cap, sinks)
    if block_sequence.shape != (blocks,) or block_start.shape != (blocks,):
        raise ValueError(
            f"for q {q.shape}, block_sequence and block_start must be ({blocks},); "
            f"got {block_sequence.shape} and {block_start.shape}"
        )
    return operations.attend_blocks(
        q,
        pages,
        page_table,
        block_sequence,
        block_start,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
    )


def write(
    pages: jax.Array,
    kv: jax.Array,
    page_ids: jax.Array,
    offsets: jax.Array,
    *,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Write each block's keys and values into its page.

    Args:
        pages: from `empty`; they are updated in place if they are donated.
        kv: (blocks, sides, kv_heads, block_tokens, head_dim) float; a block must not cross the border of a page.
        page_ids: (blocks,) int32. If several blocks name the same place, any one of them is kept. The place of a block
            of fewer than 16 tokens is the 16 aligned positions around it.
        offsets: (blocks,) int32, the position in its page at which a block starts, a multiple of `block_tokens`.
        implementation: by name; None is the best for this process's platform.

    Returns:
        The updated pages.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    operations = _serving(implementation, pages)
    _check_pages(operations, pages, kv.shape[-1], kv.shape[1:2])
    if kv.ndim != 5 or kv.shape[2] != pages.shape[2] or kv.shape[3] > pages.shape[3]:
        raise ValueError(f"blocks {kv.shape} do not fit pages {pages.shape}")
    if page_ids.shape != (len(kv),) or offsets.shape != (len(kv),):
        raise ValueError(f"{len(kv)} blocks need as many page ids and offsets, got {page_ids.shape}, {offsets.shape}")
    return operations.write(pages, kv, page_ids, offsets)


def read_page(pages: jax.Array, page_id: jax.Array, *, implementation: Implementation | None = None) -> jax.Array:
    """Copy one page out of the pool, in the form in which it is stored.

    Args:
        pages: from `empty`.
        page_id: () int32, less than the number of pages.
        implementation: by name; None is the best for this process's platform.

    Returns:
        An array of the shape and dtype of `pages[0]`.

    Raises:
        ValueError: arguments that do not fit together, an unknown implementation, or one that cannot serve these pages.
    """
    operations = _serving(implementation, pages)
    _check_page(pages, page_id, pages.shape[1:], pages.dtype)
    return operations.read_page(pages, page_id)


def write_page(
    pages: jax.Array, page_id: jax.Array, content: jax.Array, *, implementation: Implementation | None = None
) -> jax.Array:
    """Write a copy from `read_page` into the same page or another one.

    Args:
        pages: from `empty`; they are updated in place if they are donated.
        page_id: () int32, less than the number of pages.
        content: of the shape and dtype of `pages[0]`.
        implementation: by name; None is the best for this process's platform.

    Returns:
        The updated pages.

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
    sinks: jax.Array | None,
) -> None:
    """Check the arguments of both kinds of attention; q is (any, heads, head_dim)."""
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
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"{heads} heads have a sink each, got {sinks.shape}")


def _check_page(pages: jax.Array, page_id: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    if page_id.shape != ():
        raise ValueError(f"page_id must be a scalar, got {page_id.shape}")
    if (shape, dtype) != (pages.shape[1:], pages.dtype):
        raise ValueError(f"a page of these pages is {pages.shape[1:]} {pages.dtype}, got {shape} {dtype}")


def _check_pages(operations: Operations, pages: jax.Array, head_dim: int, sides: Sequence[int] = (2, 1)) -> None:
    """Check that pages are as `empty` makes them for one of these numbers of sides."""
    shapes = [(len(pages), side, *pages.shape[2:4], head_dim) for side in sides]
    stored = [jax.eval_shape(partial(operations.empty, shape, pages.dtype)).shape for shape in shapes]
    if pages.shape not in stored:
        raise ValueError(
            f"pages of head_dim {head_dim} must be {' or '.join(map(str, stored))} here, as `empty` makes them; "
            f"got {pages.shape}"
        )


def _serving(implementation: Implementation | None, pages: jax.Array) -> Operations:
    """Return the implementation for stored pages, and check that it can read them."""
    if pages.ndim != 5:
        raise ValueError(f"pages must be (pages, sides, kv_heads, page_size, width), got {pages.shape}")
    return _named(implementation, pages.shape, pages.dtype)


def _named(implementation: Implementation | None, shape: tuple[int, ...], dtype: jnp.dtype) -> Operations:
    if implementation is None:
        implementation = choose(jax.default_backend(), shape, dtype)
    operations = operations_of(implementation)
    if reason := operations.unserved(shape, dtype):
        raise ValueError(f'implementation "{implementation}" cannot serve pages {shape} {dtype}: {reason}')
    return operations


def operations_of(implementation: str) -> Operations:
    """Import an implementation when it is first used: Pallas is slow to import, and a process needs only one.

    Raises:
        ValueError: an unknown implementation.
    """
    if implementation not in _MODULES:
        names = ", ".join(f'"{name}"' for name in get_args(Implementation))
        raise ValueError(f"implementation must be one of {names}, got {implementation!r}")
    return cast(Operations, importlib.import_module(_MODULES[implementation]))
