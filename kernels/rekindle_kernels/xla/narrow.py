"""Linear layers over codes and scales in arrays of their own, for compilers that read narrow numbers without widening.

The groups of a row are the first axis: a product is a dot batched over groups, followed by a scaled sum. With one group
it is a plain dot. (XLA for v5e, v6e and H100 keeps these codes narrow; tests/kernels/narrow_programs.py.)
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle_kernels.blocks import Array, Bytes
from rekindle_kernels.storage import Activations, Piece, Storage, Stored, has_large_groups, layout_of
from rekindle_kernels.xla.halves import halves

FEW_ROWS: Final = 2
"""For more rows than a group's numbers by this, the partial sums take more memory than the weight in bfloat16."""


class Narrow(NamedTuple):
    """A run of rows of one kind; all arrays have a first axis of groups.

    Attributes:
        codes: (groups, out, numbers) int4, int8 or float8_e4m3fn; unsigned codes of a file less half of their range.
        scales: (groups, out) float32.
        offsets: (groups, out) float32: zero points or least numbers; None for neither.
    """

    codes: jax.Array
    scales: jax.Array
    offsets: jax.Array | None


def has_arrays(storage: Storage, inputs: int) -> bool:
    """Return True if all rows of a storage are codes with large groups."""
    return all(has_large_groups(kind, inputs) for kind, _ in storage.runs)


def packed(shape: tuple[int, int], storage: Storage) -> tuple[Any, ...]:
    """See `layers.packed`: codes for each run."""
    return tuple(_form(kind, rows, shape[1]) for kind, rows in storage.runs)


def _form(kind: str, rows: int, inputs: int) -> Any:
    numbers, dtype = layout_of(kind).numbers, _dtype(kind)
    scales = jax.ShapeDtypeStruct((inputs // numbers, rows), jnp.float32)
    offsets = jax.ShapeDtypeStruct(scales.shape, scales.dtype) if _offset_of(kind) else None
    form: Any = Narrow
    return form(jax.ShapeDtypeStruct((*scales.shape, numbers), dtype), scales, offsets)


def _dtype(kind: str) -> Any:
    name = kind.partition(":")[0]
    return jnp.dtype(jnp.float8_e4m3fn if name == "float8" else name)


def pack_blocks(pieces: Iterable[Piece], into: Sequence[Any], storage: Storage) -> None:
    """See `layers.pack_blocks`."""
    for run, first, blocks in pieces:
        kind, _ = storage.runs[run]
        rows = slice(first, first + len(blocks))
        parts = blocks.reshape(len(blocks), -1, layout_of(kind).size).swapaxes(0, 1)
        into[run].scales[:, rows] = _float(parts, 0)
        data, offset = parts[..., 8 if _offset_of(kind) else 4 :], _offset_of(kind)
        into[run].codes[:, rows] = _signed(data, kind)
        if offset:
            into[run].offsets[:, rows] = _float(parts, 4) - (_shift(kind) if offset == "zero" else np.float32(0))


def _float(parts: Bytes, place: int) -> Array:
    return np.ascontiguousarray(parts[..., place : place + 4]).view(np.float32)[..., 0]


def _signed(data: Bytes, kind: str) -> Array:
    """Return the codes of bytes, (..., numbers) int8 or float8_e4m3fn, less the shift of unsigned ones."""
    if kind.startswith("float8"):
        return data.view(_dtype(kind))
    if kind.startswith("int4"):
        codes = np.empty((*data.shape, 2), np.int8)
        np.bitwise_and(data, 15, out=codes[..., 0], casting="unsafe")
        np.right_shift(data, 4, out=codes[..., 1], casting="unsafe")
        codes -= np.int8(8)
        return codes.reshape(*data.shape[:-1], -1)
    return (data ^ np.uint8(128) if _shift(kind) else data).view(np.int8)


def _offset_of(kind: str) -> str:
    """Return "zero", "least" or ""."""
    return f"{kind}::".split(":")[2]


def _shift(kind: str) -> np.float32:
    """Return the number that the array's codes are less than the kind's."""
    if kind.startswith("int4"):
        return np.float32(8 if _offset_of(kind) else 0)
    return np.float32(128 if _offset_of(kind) == "least" else 0)


def product(x: jax.Array, weight: Stored) -> jax.Array:
    """Compute `x @ weight.T`, (rows, out) float32, of inputs rounded for the weight's activations."""
    x, factors = _factored(x, weight.storage.activations)
    runs = zip(weight.storage.runs, weight.data, strict=True)
    products = [_product(x, codes, kind) for (kind, _), codes in runs]
    y = products[0] if len(products) == 1 else jnp.concatenate(products, axis=1)
    return y if factors is None else y * factors


def _factored(x: jax.Array, activations: Activations) -> tuple[jax.Array, jax.Array | None]:
    """Return the inputs of products, and the factors of their results; None for factors of 1."""
    if activations == "float16":
        return halves(x)
    return x.astype(jnp.bfloat16 if activations == "bfloat16" else jnp.float32), None


def _product(x: jax.Array, run: Narrow, kind: str) -> jax.Array:
    rows, (groups, _, numbers) = len(x), run.codes.shape
    parts = x.reshape(rows, groups, numbers)
    if groups > 1 and rows * FEW_ROWS > numbers:
        return _dot(parts, _numbers(run, kind).astype(x.dtype), (((1, 2), (0, 2)), ((), ())))
    if groups == 1:
        y = _dot(x, run.codes[0].astype(x.dtype), (((1,), (1,)), ((), ())))[None]
    else:
        y = _dot(parts, run.codes.astype(x.dtype), (((2,), (2,)), ((1,), (0,))))
    scales = run.scales[:, None]
    if run.offsets is None:
        return (y * scales).sum(0)
    sums, offsets = parts.astype(jnp.float32).sum(-1).T[..., None], run.offsets[:, None]
    if _offset_of(kind) == "zero":
        return ((y - sums * offsets) * scales).sum(0)
    return ((y + sums * _shift(kind)) * scales + sums * offsets).sum(0)


def _dot(x: jax.Array, y: jax.Array, dims: Any) -> jax.Array:
    """Return a product with float32 sums."""
    return lax.dot_general(x, y, dims, preferred_element_type=jnp.float32)


def widen(weight: Stored) -> jax.Array:
    """Return the numbers of a weight, (..., out, in) float32."""
    runs = zip(weight.storage.runs, weight.data, strict=True)
    parts = [_rows_of(_numbers(codes, kind)) for (kind, _), codes in runs]
    return jnp.concatenate(parts, axis=-2)


def look_up(weight: Stored, ids: jax.Array, inputs: int) -> jax.Array:
    """See `layers.look_up`."""
    result, row = jnp.zeros((len(ids), inputs), jnp.float32), 0
    for (kind, rows), run in zip(weight.storage.runs, weight.data, strict=True):
        places = jnp.clip(ids - row, 0, rows - 1)
        some: Narrow = jax.tree.map(lambda array, places=places: array[:, places], run)
        result = jnp.where((ids >= row)[:, None], _rows_of(_numbers(some, kind)), result)
        row += rows
    return result


def _rows_of(numbers: jax.Array) -> jax.Array:
    """Return numbers (..., groups, out, numbers) in the order of rows, (..., out, inputs)."""
    rows = numbers.swapaxes(-3, -2)
    return rows.reshape(*rows.shape[:-2], -1)


def _numbers(run: Narrow, kind: str) -> jax.Array:
    """Return the numbers of codes, (..., groups, out, numbers) float32."""
    codes, scales = run.codes.astype(jnp.float32), run.scales[..., None]
    if run.offsets is None:
        return codes * scales
    if _offset_of(kind) == "zero":
        return (codes - run.offsets[..., None]) * scales
    rounded: jax.Array = lax.optimization_barrier((codes + _shift(kind)) * scales)  # two roundings, as in files
    return rounded + run.offsets[..., None]
