"""Linear layers in portable XLA, over weights in the order of checkpoints, (out, in)."""

from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle_kernels.blocks import Array, Tensor
from rekindle_kernels.inputs import Gated, Input, Normed
from rekindle_kernels.storage import Storage, Stored, Weight
from rekindle_kernels.xla import stored
from rekindle_kernels.xla.gate import gate
from rekindle_kernels.xla.halves import halves
from rekindle_kernels.xla.norm import layer_norm, rms_norm

FEW_ROWS = 64
"""Up to this many float32 rows, a product is a third faster on CPU with the weight as the left operand."""
MANY_ROWS = 128
"""Maximum number of rows of a group in one product."""


def packed(shape: tuple[int, int], dtype: jnp.dtype | Storage) -> Any:
    """See `layers.packed`. The form of a dtype is the unchanged shape."""
    if isinstance(dtype, Storage):
        return stored.packed(shape, dtype)
    return jax.ShapeDtypeStruct(shape, dtype)


def pack(parts: Sequence[Tensor], into: Array) -> None:
    """See `layers.pack`."""
    np.concatenate([np.asarray(part) for part in parts], out=into, casting="unsafe")


def linear(x: Input, weight: Weight, outputs: int, onto: jax.Array | None = None) -> jax.Array:
    """See `layers.linear`."""
    y = _matmul(materialize(x), weight)
    return y if onto is None else onto + y


def _matmul(x: jax.Array, weight: Weight) -> jax.Array:
    """Compute `x @ weight.T`."""
    return stored.product(x, weight) if _is_narrow(weight) else _product(*widened(x, weight))


def _is_narrow(weight: Weight) -> TypeGuard[Stored]:
    """Return True for codes that are multiplied without widening."""
    return isinstance(weight, Stored) and stored.has_arrays(weight) and weight.storage.activations != "exact"


def widened(x: jax.Array, weight: Weight) -> tuple[jax.Array, jax.Array]:
    """Return the numbers of a product in blocks: rounded inputs and float32 weights. Others are returned unchanged."""
    if isinstance(weight, Stored):
        return stored.rounded(x, weight.storage), stored.widen(weight, x.shape[1])
    return x, weight


def materialize(x: Input) -> jax.Array:
    """See `layers.materialize`."""
    if isinstance(x, Normed):
        return layer_norm(x.x, x.weight, x.bias, x.eps) if x.centred else rms_norm(x.x, x.weight, x.eps)
    return gate(x.x) if isinstance(x, Gated) else x


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute `x @ weight.T`. The form of the product is the fastest on CPU.

    No product has a bfloat16 result or a single bfloat16 row, because XLA's CPU backend has only a naive loop for
    either (measured on 2 cores, tests/bench).
    """
    if weight.dtype == jnp.float16:
        x, factors = halves(x)
        return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32) * factors
    x = x.astype(weight.dtype)
    rows = len(x)
    if weight.dtype == jnp.float32 and rows <= FEW_ROWS:
        y: jax.Array = lax.optimization_barrier(lax.dot_general(weight, x, (((1,), (1,)), ((), ()))))
        return y.T
    if weight.dtype == jnp.bfloat16 and rows == 1:
        x = jnp.broadcast_to(x, (2, x.shape[1]))
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)[:rows]


def linear_columns(x: jax.Array, weight: Weight, outputs: int) -> jax.Array:
    """See `layers.linear_columns`. XLA chooses the layout of the product by its use."""
    return linear(x, weight, outputs).T


def grouped_linear(x: jax.Array, counts: jax.Array | None, weight: Weight, outputs: int) -> jax.Array:
    """See `layers.grouped_linear`. Without counts it is one batched product.

    With counts, blocks of rows of one group are multiplied one after the other. This reads only the required weights,
    and copies none. In contrast, `lax.ragged_dot` computes every group for a few rows, and for many rows it transposes
    all weights first (in the program for a v6e; tests/kernels/test_tpu_compiles.py).
    """
    rows, groups = len(x), len(weight)
    if not _is_narrow(weight):
        x, weight = widened(x, weight)
    if counts is None:
        each = x.reshape(groups, -1, x.shape[1])
        if isinstance(weight, Stored):
            return jax.vmap(stored.product)(each, weight).reshape(rows, outputs)
        each, factors = halves(each) if weight.dtype == jnp.float16 else (each.astype(weight.dtype), None)
        dims = (((2,), (2,)), ((0,), (0,)))
        y: jax.Array = lax.dot_general(each, weight, dims, preferred_element_type=jnp.float32)
        return (y if factors is None else y * factors).reshape(rows, outputs)
    if not rows:
        return jnp.zeros((0, outputs), jnp.float32)
    size = max(1, min(MANY_ROWS, 1 << (rows // groups).bit_length()))
    blocks = -(-counts // size)
    ends = jnp.cumsum(blocks)
    starts = jnp.cumsum(counts) - counts

    def body(block: jax.Array, y: jax.Array) -> jax.Array:
        group = jnp.searchsorted(ends, block, side="right")
        first = (block - ends[group] + blocks[group]) * size
        within = first + jnp.arange(size, dtype=jnp.int32)
        places = jnp.where(within < counts[group], starts[group] + within, rows)
        product = _matmul(x[jnp.minimum(places, rows - 1)], weight[group])
        return y.at[places].set(product, mode="drop")

    out: jax.Array = lax.fori_loop(0, ends[-1], body, jnp.zeros((rows, outputs), jnp.float32))
    return out


def low_rank(
    x: jax.Array, groups: jax.Array, first: jax.Array, second: jax.Array, sizes: tuple[int, int], onto: jax.Array
) -> jax.Array:
    """See `layers.low_rank`. All groups are multiplied as one weight, and each row keeps the numbers of its own.

    The weights of all groups are small, and a loop over groups would wait for the host in each step on a GPU.
    """
    (rank, outputs), count = sizes, len(first)
    inner = _product(x, first.reshape(count * rank, -1)).reshape(-1, count, rank)
    own = groups[:, None] == jnp.arange(count, dtype=jnp.int32)[None]
    inner = jnp.where(own[:, :, None], inner, 0).reshape(-1, count * rank)
    return onto + _product(inner, second.swapaxes(0, 1).reshape(outputs, count * rank))


def look_up(weight: Weight, ids: jax.Array, features: int) -> jax.Array:
    """See `layers.look_up`."""
    if isinstance(weight, Stored):
        return stored.look_up(weight, ids, features)
    return weight[ids].astype(jnp.float32)
