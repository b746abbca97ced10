"""Operations on a page pool, such as attention, with checks of arguments and a choice of implementations.

Every function takes an implementation by name. None stands for the result of `choose` on this process's platform. Code
compiled for another platform names the implementation in every call.
"""

import importlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

from rekindle_kernels.devices import capability_of, default_device
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
_PORTABLE: Final = "xla.attention"
_PREFERRED: Final[dict[str, Implementation]] = {"cpu": "cpu", "tpu": "tpu", "gpu": "gpu", "cuda": "gpu"}
_TRITON: Final = "jax.experimental.pallas.triton"
"""The module of Pallas's lowering to Triton, which JAX 0.11 and later deprecate."""
_LEAST_CAPABILITY: Final = (8, 0)
"""The compute capability from which on Triton compiles for NVIDIA GPUs."""


class Choice(NamedTuple):
    """Kernels for the page pools of a model.

    Attributes:
        implementation: their name.
        reason: the reason against the kernels of the platform, in favor of "xla"; empty with the platform's, and if
            the caller names an implementation.
    """

    implementation: Implementation
    reason: str = ""

    def __str__(self) -> str:
        """Return the text "cpu kernels (avx2)", or "xla kernels (...)" with the reason."""
        cpu = self.implementation == "cpu"
        reason = library_of(self.implementation).partition(" ")[0] if cpu else self.reason
        return f"{self.implementation} kernels" + (f" ({reason})" if reason else "")


def choose(
    platform: str,
    shapes: Iterable[tuple[int, ...]],
    dtype: jnp.dtype,
    override: Implementation | None = None,
    *,
    weights: jnp.dtype | None = None,
    capability: tuple[int, int] | None = None,
) -> Choice:
    """Return the best implementation for all of some pools on a platform; "xla" works everywhere.

    Args:
        platform: "cpu", "gpu" or "tpu", as in `jax.default_backend()` or `jax.Device.platform`.
        shapes: (pages, sides, kv_heads, page_size, head_dim) of each pool; see `empty`.
        dtype: the dtype of the pools.
        override: an implementation to check and return instead of the best one.
        weights: the dtype of the matrices of linear layers; None if there are none.
        capability: the compute capability of the device, see `devices.capability_of`; None if it has none.

    Raises:
        ValueError: `override` is unknown, or cannot serve these pools and weights on this device.
    """
    preferred = _PREFERRED.get(platform, "xla")
    foreign = override in _PREFERRED.values() and override != preferred
    for shape in dict.fromkeys(shapes):
        reason = unsupported_reason(override or preferred, shape, dtype, weights=weights, capability=capability)
        reason = f"its kernels do not run on {platform}" if foreign else reason
        if override is None and reason is not None:
            return Choice("xla", "" if preferred == "xla" else reason)
        if reason is not None:
            raise ValueError(
                f'implementation "{override}" cannot serve pages {shape} {dtype} on {platform}: {reason}. '
                'Leave it out, or take "xla", which runs everywhere'
            )
    return Choice(override or preferred)


def unsupported_reason(
    implementation: Implementation,
    shape: tuple[int, ...],
    dtype: jnp.dtype,
    *,
    weights: jnp.dtype | None = None,
    capability: tuple[int, int] | None = None,
) -> str | None:
    """Return the reason an implementation does not support pages of this shape and dtype, or None if it does.

    Args:
        implementation: by name.
        shape: see `choose`.
        dtype: see `choose`.
        weights: see `choose`.
        capability: see `choose`.

    Raises:
        ValueError: the implementation is unknown.
    """
    if implementation == "gpu" and (reason := _reason_against_triton(capability)) is not None:
        return reason
    weights = None if weights is None else jnp.dtype(weights)
    return operations_of(implementation).unsupported_reason(shape, jnp.dtype(dtype), weights)


def _reason_against_triton(capability: tuple[int, int] | None) -> str | None:
    """Return the reason JAX cannot compile Pallas kernels by Triton for a GPU, or None if it can."""
    if capability is not None and capability < _LEAST_CAPABILITY:
        least, own = (".".join(map(str, each)) for each in (_LEAST_CAPABILITY, capability))
        return f"Pallas needs compute capability {least}, and this GPU has {own}"
    try:
        importlib.import_module(_TRITON)
    except ImportError:
        return f"JAX {jax.__version__} cannot compile Pallas kernels by Triton"
    return None


def is_batch_invariant(implementation: Implementation) -> bool:
    """Return True if the bits of a row's results never depend on the other rows of a batch, in all operations."""
    return implementation == "cpu"


def library_of(implementation: Implementation) -> str:
    """Return the instruction set and the SHA-256 of an implementation's compiled library, or "" without a library.

    The library is loaded first, so that stored programs from another process find its functions.

    Raises:
        RuntimeError: the library cannot be used in this process; the message has the reason.
    """
    if implementation != "cpu":
        return ""
    library = importlib.import_module("rekindle_kernels.cpu.library")
    return f"{library.instruction_set()} {library.digest()}"


def empty(shape: tuple[int, ...], dtype: jnp.dtype, *, implementation: Implementation | None = None) -> jax.Array:
    """Create an uninitialised page pool, in the implementation's stored form.

    Args:
        shape: (pages, sides, kv_heads, page_size, head_dim), with one side for keys and one for values, or a single
            side for both, as in latent attention.
        dtype: float32, bfloat16, float16 or int8. For int8, each position of a head has a scale for each 64 numbers.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (pages, stored sides, kv_heads, page_size, width), equal to `shape` except for "tpu" (see `tpu.form`), and for
        int8, with four bytes more for each 64 numbers of a row (see `xla.scaled`). The dtype is `dtype`, but "xla" and
        "cpu" store the bits of bfloat16 in uint16. The content is arbitrary.

    Raises:
        ValueError: the implementation is unknown, or cannot serve this pool.
    """
    return _operations(implementation, shape, jnp.dtype(dtype)).empty(shape, jnp.dtype(dtype))


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
    """Compute softmax attention of one query per row over the row's pages, for decoding.

    Args:
        q: (rows, heads, head_dim) float.
        pages: from `empty`; `kv_heads` must divide `heads`.
        page_table: (rows, pages_per_row) int32; entries past the context are arbitrary.
        visible: (rows,) int32; a row attends to positions `[max(0, visible - window), visible)` of its sequence.
        scale: a factor of the scores.
        window: the maximum number of positions visible to a query; None for all.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; None for unchanged scores.
        sinks: (heads,) float, the score of one more position per head, visible to all queries and with zeros as values
            (Xiao et al., 2023, arXiv:2309.17453); None for no sinks.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (rows, heads, head_dim) float32; zeros for a row with no visible position. Content of the pages at invisible
        positions has no effect, not even NaN.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown or cannot serve these pages.
    """
    rows = len(q)
    operations = _operations_on(implementation, pages)
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
    visible_until: jax.Array | None = None,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    bias: jax.Array | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Compute softmax attention of blocks of queries over their sequences' pages, for prefill.

    The keys and values of the blocks must be in the pages already, after those of a cached prefix.

    Args:
        q: (blocks, block_tokens, heads, head_dim) float. Adjacent blocks of one sequence must be adjacent in position.
        pages: from `empty`; `kv_heads` must divide `heads`.
        page_table: (sequences, pages_per_sequence) int32; entries past the context are arbitrary.
        block_sequence: (blocks,) int32, each block's row of `page_table`.
        block_start: (blocks,) int32, the position of a block's first token; negative for a padding block.
            Token t is at position `p = block_start + t` and attends to `[max(0, p + 1 - window), p]`.
        visible_until: (blocks, block_tokens) int32, the end of the positions visible to each token, in place of p + 1:
            `[max(0, p + 1 - window), visible_until)`. It is at least p + 1, never falls from a token to the next one
            of its sequence, and keys and values up to there are in the pages. None for p + 1, as in causal attention.
        scale: a factor of the scores.
        window: the maximum number of positions visible to a query; None for all.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; None for unchanged scores.
        sinks: (heads,) float, the score of one more position per head, visible to all queries and with zeros as values
            (Xiao et al., 2023, arXiv:2309.17453); None for no sinks.
        bias: (heads, 2 * farthest + 1) float32, the summand of scores by the distance of the key from the query, from
            -farthest to farthest; farther keys have that of the farthest. It is added after the soft cap, and computed
            portably, over pages in a form of "xla", "cpu" or "reference". None for none.
        implementation: by name; None is the best for this process's platform.

    Returns:
        (blocks, block_tokens, heads, head_dim) float32; zeros for a padding block. Content of the pages at positions
        invisible to all queries of the sequence has no effect, not even NaN.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown or cannot serve these pages.
    """
    blocks = len(q)
    operations = _operations_on(implementation, pages)
    _check_attention(operations, q[:, 0], pages, page_table, window, soft_cap, sinks)
    if block_sequence.shape != (blocks,) or block_start.shape != (blocks,):
        raise ValueError(
            f"for q {q.shape}, block_sequence and block_start must be ({blocks},); "
            f"got {block_sequence.shape} and {block_start.shape}"
        )
    if visible_until is not None and visible_until.shape != q.shape[:2]:
        raise ValueError(f"for q {q.shape}, visible_until must be {q.shape[:2]}; got {visible_until.shape}")
    where = q, pages, page_table, block_sequence, block_start, visible_until
    if bias is None:
        return operations.attend_blocks(*where, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks)
    if bias.ndim != 2 or len(bias) != q.shape[2] or not bias.shape[1] % 2:
        raise ValueError(f"for q {q.shape}, bias must be ({q.shape[2]}, an odd number); got {bias.shape}")
    if implementation == "tpu":
        raise ValueError('a bias of scores has no "tpu" kernel yet: take implementation "xla"')
    module = importlib.import_module(f"rekindle_kernels.{'reference' if implementation == 'reference' else _PORTABLE}")
    out: jax.Array = module.attend_blocks(*where, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, bias=bias)
    return out


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
        pages: from `empty`; updated in place if donated.
        kv: (blocks, sides, kv_heads, block_tokens, head_dim) float; a block must not cross a page boundary.
        page_ids: (blocks,) int32. If several blocks go to the same place, an arbitrary one of them remains.
        offsets: (blocks,) int32, the position of a block's start within its page, a multiple of `block_tokens`.
        implementation: by name; None is the best for this process's platform.

    Returns:
        The updated pages.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown or cannot serve these pages.
    """
    operations = _operations_on(implementation, pages)
    _check_pages(operations, pages, kv.shape[-1], kv.shape[1:2])
    if kv.ndim != 5 or kv.shape[2] != pages.shape[2] or kv.shape[3] > pages.shape[3]:
        raise ValueError(f"blocks {kv.shape} do not fit pages {pages.shape}")
    if page_ids.shape != (len(kv),) or offsets.shape != (len(kv),):
        raise ValueError(f"{len(kv)} blocks need as many page ids and offsets, got {page_ids.shape}, {offsets.shape}")
    return operations.write(pages, kv, page_ids, offsets)


def read_page(pages: jax.Array, page_id: jax.Array, *, implementation: Implementation | None = None) -> jax.Array:
    """Copy one page out of the pool, in stored form.

    Args:
        pages: from `empty`.
        page_id: () int32, less than the number of pages.
        implementation: by name; None is the best for this process's platform.

    Returns:
        An array of the shape and dtype of `pages[0]`.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown or cannot serve these pages.
    """
    operations = _operations_on(implementation, pages)
    _check_page(pages, page_id, pages.shape[1:], pages.dtype)
    return operations.read_page(pages, page_id)


def write_page(
    pages: jax.Array, page_id: jax.Array, content: jax.Array, *, implementation: Implementation | None = None
) -> jax.Array:
    """Write a copy from `read_page` into the same page or another one.

    Args:
        pages: from `empty`; updated in place if donated.
        page_id: () int32, less than the number of pages.
        content: an array of the shape and dtype of `pages[0]`.
        implementation: by name; None is the best for this process's platform.

    Returns:
        The updated pages.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown or cannot serve these pages.
    """
    operations = _operations_on(implementation, pages)
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
    """Reject pages without a shape from `empty` for one of these numbers of sides."""
    shapes = [(len(pages), side, *pages.shape[2:4], head_dim) for side in sides]
    stored_shapes = [jax.eval_shape(partial(operations.empty, shape, pages.dtype)).shape for shape in shapes]
    if pages.shape not in stored_shapes:
        raise ValueError(
            f"pages of head_dim {head_dim} must be {' or '.join(map(str, stored_shapes))} here, as from `empty`; "
            f"got {pages.shape}"
        )


def _operations_on(implementation: Implementation | None, pages: jax.Array) -> Operations:
    """Return the implementation for stored pages.

    Raises:
        ValueError: it cannot read the pages.
    """
    if pages.ndim != 5:
        raise ValueError(f"pages must be (pages, sides, kv_heads, page_size, width), got {pages.shape}")
    return _operations(implementation, pages.shape, pages.dtype)


def _operations(implementation: Implementation | None, shape: tuple[int, ...], dtype: jnp.dtype) -> Operations:
    if implementation is None:
        device = default_device()
        implementation = choose(device.platform, [shape], dtype, capability=capability_of(device)).implementation
    operations = operations_of(implementation)
    if reason := operations.unsupported_reason(shape, dtype):
        raise ValueError(f'implementation "{implementation}" cannot serve pages {shape} {dtype}: {reason}')
    return operations


def operations_of(implementation: str) -> Operations:
    """Import an implementation on first use: Pallas is slow to import, and a process needs only one.

    Raises:
        ValueError: the implementation is unknown.
    """
    if implementation not in _MODULES:
        names = ", ".join(f'"{name}"' for name in get_args(Implementation))
        raise ValueError(f"implementation must be one of {names}, got {implementation!r}")
    return cast(Operations, importlib.import_module(_MODULES[implementation]))
