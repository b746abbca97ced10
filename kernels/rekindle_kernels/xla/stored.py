"""Linear layers over quantized blocks in portable XLA: widened first, right and slow, except codes with large groups.

The packed form of other blocks is that of a file, row by row.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle_kernels.quantized import TABLES
from rekindle_kernels.storage import GROUP, MOST, PAIRED, Piece, Storage, Stored, has_floats, layout_of
from rekindle_kernels.xla import narrow
from rekindle_kernels.xla.halves import halves


def packed(shape: tuple[int, int], storage: Storage) -> Any:
    """See `layers.packed`."""
    if narrow.has_arrays(storage, shape[1]):
        return narrow.packed(shape, storage)
    size = sum(rows * _row_bytes(kind, shape[1]) for kind, rows in storage.runs)
    return jax.ShapeDtypeStruct((size,), jnp.dtype(jnp.uint8))


def pack_blocks(pieces: Iterable[Piece], into: Any, storage: Storage) -> None:
    """See `layers.pack_blocks`."""
    if not isinstance(into, np.ndarray):
        narrow.pack_blocks(pieces, into, storage)
        return
    place = 0
    for _, _, blocks in pieces:
        into[place : place + blocks.size].reshape(blocks.shape)[:] = blocks
        place += blocks.size


def has_arrays(weight: jax.Array | Stored) -> bool:
    """Return True for codes and scales in arrays of their own."""
    return isinstance(weight, Stored) and isinstance(weight.data, tuple)


def product(x: jax.Array, weight: Stored) -> jax.Array:
    """Compute `x @ weight.T`, (rows, out) float32, of codes and scales in arrays of their own."""
    return narrow.product(rounded(x, weight.storage), weight)


def rounded(x: jax.Array, storage: Storage) -> jax.Array:
    """Round (rows, in) as the native layers do, to integers by row and group of 32 inputs; or to floats of 16 bits.

    If a weight has codes of floats, nothing is rounded to integers.
    """
    if storage.activations == "bfloat16":
        return x.astype(jnp.bfloat16).astype(x.dtype)
    if storage.activations == "float16":
        numbers, factors = halves(x)
        return numbers.astype(x.dtype) * factors
    if storage.activations == "exact" or any(has_floats(kind) for kind, _ in storage.runs):
        return x
    groups = x.reshape(len(x), -1, GROUP)
    scale = jnp.abs(groups).max(-1, keepdims=True) / MOST[storage.activations]
    return jnp.where(scale > 0, jnp.round(groups / scale) * scale, 0).reshape(x.shape)


def widen(weight: Stored, inputs: int) -> jax.Array:
    """Return the numbers of a weight, (..., out, in) float32, with the roundings of the gguf library."""
    if has_arrays(weight):
        return narrow.widen(weight)
    parts, first = [], 0
    for kind, rows in weight.storage.runs:
        size = rows * _row_bytes(kind, inputs)
        blocks = weight.data[..., first : first + size]
        parts.append(_widen(blocks.reshape(*weight.data.shape[:-1], rows, -1, layout_of(kind).size), kind))
        first += size
    return jnp.concatenate(parts, axis=-2)


def look_up(weight: Stored, ids: jax.Array, inputs: int) -> jax.Array:
    """See `layers.look_up`."""
    if has_arrays(weight):
        return narrow.look_up(weight, ids, inputs)
    result, first, row = jnp.zeros((len(ids), inputs), jnp.float32), 0, 0
    for kind, rows in weight.storage.runs:
        size = rows * _row_bytes(kind, inputs)
        blocks = weight.data[first : first + size].reshape(rows, -1, layout_of(kind).size)
        numbers = _widen(blocks[jnp.clip(ids - row, 0, rows - 1)], kind)
        result = jnp.where((ids >= row)[:, None], numbers, result)
        first, row = first + size, row + rows
    return result


def _row_bytes(kind: str, inputs: int) -> int:
    layout = layout_of(kind)
    return inputs // layout.numbers * layout.size


def _floats(blocks: jax.Array, place: int, dtype: jnp.dtype) -> jax.Array:
    """Return the float at a place of each block, (..., 1) float32."""
    stored = blocks[..., place : place + np.dtype(dtype).itemsize]
    return lax.bitcast_convert_type(stored, dtype).astype(jnp.float32)[..., None]


def _nibbles(data: jax.Array, groups: int) -> jax.Array:
    """Return low halves and then high halves of each group of bytes, (..., codes) uint8."""
    data = data.reshape(*data.shape[:-1], groups, -1)
    return jnp.concatenate([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-2], -1)


def _widen(blocks: jax.Array, kind: str) -> jax.Array:
    """Return the numbers of blocks, from (..., blocks, bytes) to (..., numbers)."""
    if ":" in kind:
        numbers = _widen_codes(blocks, kind)
    elif kind in ("Q4_K", "Q5_K"):
        numbers = _widen_k(blocks, kind)
    elif kind == "Q6_K":
        numbers = _widen_q6_k(blocks)
    else:
        numbers = _widen_groups(blocks, kind)
    return numbers.reshape(*blocks.shape[:-2], -1)


def _widen_groups(blocks: jax.Array, kind: str) -> jax.Array:
    scale, after = _floats(blocks, 0, jnp.float16), 4 if kind.endswith("_1") else 2
    if kind == "Q8_0":
        return lax.bitcast_convert_type(blocks[..., after:], jnp.int8).astype(jnp.float32) * scale
    codes = _nibbles(blocks[..., -16:], 1)
    if kind.startswith("Q5"):
        fifths = jnp.unpackbits(blocks[..., after : after + 4], axis=-1, bitorder="little")
        codes = codes | fifths << 4
    if kind.endswith("_1"):
        return _sum(codes.astype(jnp.float32) * scale, _floats(blocks, 2, jnp.float16))
    return (codes.astype(jnp.float32) - (8 if kind == "Q4_0" else 16)) * scale


def _widen_k(blocks: jax.Array, kind: str) -> jax.Array:
    low, high, mixed = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = jnp.concatenate([low & 63, (mixed & 15) | low >> 6 << 4], axis=-1).astype(jnp.float32)
    minima = jnp.concatenate([high & 63, mixed >> 4 | high >> 6 << 4], axis=-1).astype(jnp.float32)
    codes = _nibbles(blocks[..., -128:], 4).reshape(*blocks.shape[:-1], 8, 32)
    if kind == "Q5_K":
        fifths = jnp.stack([blocks[..., 16:48] >> group & 1 for group in range(8)], axis=-2)
        codes = codes | fifths << 4
    scale = (_floats(blocks, 0, jnp.float16) * scales)[..., None]
    return _sum(codes.astype(jnp.float32) * scale, -(_floats(blocks, 2, jnp.float16) * minima)[..., None])


def _widen_q6_k(blocks: jax.Array) -> jax.Array:
    low = _nibbles(blocks[..., :128], 2)
    pairs = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 32)
    high = jnp.stack([pairs >> 2 * quarter & 3 for quarter in range(4)], axis=-2)
    codes = low | high.reshape(low.shape) << 4
    factors = lax.bitcast_convert_type(blocks[..., 192:208], jnp.int8).astype(jnp.float32)
    scale = (_floats(blocks, 208, jnp.float16) * factors)[..., None]
    return (codes.astype(jnp.float32) - 32).reshape(*blocks.shape[:-1], 16, 16) * scale


def _widen_codes(blocks: jax.Array, kind: str) -> jax.Array:
    name, _, offset = f"{kind}:".split(":")[:3]
    scale, data = _floats(blocks, 0, jnp.float32), blocks[..., 8 if offset or kind == PAIRED else 4 :]
    if kind == PAIRED:
        scale = jnp.repeat(jnp.concatenate([scale, _floats(blocks, 4, jnp.float32)], axis=-1), GROUP // 2, axis=-1)
    if name.endswith("4"):
        small = jnp.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)
        codes = jnp.asarray(TABLES[name])[small] if name in TABLES else small.astype(jnp.float32) - (0 if offset else 8)
    elif name == "float8":
        codes = lax.bitcast_convert_type(data, jnp.float8_e4m3fn).astype(jnp.float32)
    else:
        codes = (data if offset == "least" else lax.bitcast_convert_type(data, jnp.int8)).astype(jnp.float32)
    if offset == "least":
        return _sum(codes * scale, _floats(blocks, 4, jnp.float32))
    return (codes - _floats(blocks, 4, jnp.float32) if offset else codes) * scale


def _sum(product: jax.Array, summand: jax.Array) -> jax.Array:
    """Add to a rounded product: the barrier keeps XLA from fusing the two operations into one rounding."""
    rounded_product: jax.Array = lax.optimization_barrier(product)
    return rounded_product + summand
