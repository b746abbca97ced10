"""Linear layers over packed weights, in C++."""

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.blocks import Array, Blocks, Tensor
from rekindle_kernels.cpu import stored
from rekindle_kernels.cpu.gate import gate
from rekindle_kernels.cpu.library import load
from rekindle_kernels.cpu.norm import arguments_of, norm
from rekindle_kernels.cpu.stored import PANEL
from rekindle_kernels.inputs import Gated, Input, Normed
from rekindle_kernels.quantized import Codes, Quantized
from rekindle_kernels.storage import Storage, Stored, Weight

ALONE: Final = 32_768
"""Input size below which a single thread is fastest: waking another thread would take longer."""


def packed(shape: tuple[int, int], dtype: jnp.dtype | Storage) -> jax.ShapeDtypeStruct:
    """See `layers.packed`: panels of 32 outputs, input by input, with inputs in pairs for bfloat16.

    The dtype stays bfloat16, since only our native calls use the weights.
    """
    if isinstance(dtype, Storage):
        return stored.packed(shape, dtype)
    outputs, inputs = shape
    panels = -(-outputs // PANEL)
    if dtype == jnp.bfloat16:
        return jax.ShapeDtypeStruct((panels, -(-inputs // 2), PANEL, 2), dtype)
    return jax.ShapeDtypeStruct((panels, inputs, PANEL), dtype)


class _Codes(ctypes.Structure):
    """The struct `Codes` of the library."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("data", "table", "scales", "zeros", "biases")),
        *((name, ctypes.c_int64) for name in ("stride", "inputs", "group", "groups")),
        *((name, ctypes.c_int32) for name in ("bits", "rounding")),
    ]


_ROUNDINGS: Final = {"float32": 0, "bfloat16": 1, "float16": 2}


def pack(parts: Sequence[Tensor], into: Array) -> None:
    """See `layers.pack`. The library widens codes and blocks of common kinds; numpy widens the others first."""
    native = load()
    narrow = into.dtype == jnp.bfloat16
    write = native.rekindle_pack_bf16 if narrow else native.rekindle_pack_f32
    write_blocks = native.rekindle_pack_blocks_bf16 if narrow else native.rekindle_pack_blocks_f32
    write_blocks.restype = ctypes.c_bool
    first = 0
    for part in parts:
        place, shape = (_pointer(into), ctypes.c_int64(first)), [*map(ctypes.c_int64, part.shape)]
        first += len(part)
        if isinstance(part, Blocks):
            data = np.ascontiguousarray(part.data)
            if write_blocks(part.kind.name.encode(), *place, _pointer(data), *shape):
                continue
        numbers: Array | Codes = part.codes() if isinstance(part, Quantized) else np.asarray(part)
        if isinstance(numbers, Codes):
            _pack_codes(native.rekindle_pack_codes_bf16 if narrow else native.rekindle_pack_codes_f32, numbers, *place)
            continue
        numbers = np.ascontiguousarray(numbers, into.dtype)
        write(*place, _pointer(numbers), *shape)


def _pack_codes(write: Any, codes: Codes, into: ctypes.c_void_p, first: ctypes.c_int64) -> None:
    codes = codes.one_by_one()
    data = codes.data if codes.data.strides[-1] == 1 else np.ascontiguousarray(codes.data)
    numbers = [
        None if a is None else np.ascontiguousarray(a) for a in (codes.table, codes.scales, codes.zeros, codes.biases)
    ]
    pointers = [None if array is None else array.ctypes.data for array in (data, *numbers)]
    bits = 4 if len(codes.table) == 16 else 8
    sizes = (data.strides[0], codes.inputs, codes.group, codes.scales.shape[1])
    whole = _Codes(*pointers, *sizes, bits, _ROUNDINGS[codes.dtype.name])
    write(ctypes.byref(whole), into, first, ctypes.c_int64(len(data)))


def linear(x: Input, weight: Weight, outputs: int, onto: jax.Array | None = None) -> jax.Array:
    """See `layers.linear`. The order of each row's sums is independent of other rows.

    Deferred inputs of few rows are computed within the call: for one row, a separate call costs more than the
    computation.
    """
    if isinstance(x, Normed) and x.x.size >= ALONE:
        x = norm(x)
    elif isinstance(x, Gated) and x.x.size >= ALONE:
        x = gate(x.x)
    return _linear(x, weight, outputs, onto, columns=False)


def linear_columns(x: jax.Array, weight: Weight, outputs: int) -> jax.Array:
    """See `layers.linear_columns`. The sums are equal to `linear`."""
    return _linear(x, weight, outputs, None, columns=True)


def _linear(x: Input, weight: Weight, outputs: int, onto: jax.Array | None, columns: bool) -> jax.Array:
    load()
    if isinstance(weight, Stored):
        return stored.linear(x, weight, outputs, onto, columns=columns)
    numbers = x if isinstance(x, jax.Array) else x.x
    shape = (outputs, len(numbers)) if columns else (len(numbers), outputs)
    call = jax.ffi.ffi_call("rekindle_linear", jax.ShapeDtypeStruct(shape, jnp.float32))
    base = jnp.zeros((0, 0), jnp.float32) if onto is None else onto
    scales, bias, options = arguments_of(x)
    options |= {"columns": columns, "gated": isinstance(x, Gated)}
    y: jax.Array = call(numbers.astype(jnp.float32), weight, scales, bias, base, **options)
    return y


def grouped_linear(x: jax.Array, counts: jax.Array | None, weight: Weight, outputs: int) -> jax.Array:
    """See `layers.grouped_linear`. The sums are equal to `linear`."""
    counts = jnp.full(len(weight), len(x) // len(weight), jnp.int32) if counts is None else counts
    if isinstance(weight, Stored):
        load()
        return stored.grouped_linear(x, counts, weight, outputs)
    return _grouped_linear(x, counts, weight, outputs, None)


def _grouped_linear(
    x: jax.Array, counts: jax.Array, weight: jax.Array, outputs: int, onto: jax.Array | None
) -> jax.Array:
    """Compute `layers.grouped_linear`, added to `onto` in place if nothing else uses it."""
    load()
    result, aliases = jax.ShapeDtypeStruct((len(x), outputs), jnp.float32), None if onto is None else {3: 0}
    call = jax.ffi.ffi_call("rekindle_grouped_linear", result, input_output_aliases=aliases)
    y: jax.Array = call(x.astype(jnp.float32), counts, weight, jnp.zeros((0, 0), jnp.float32) if onto is None else onto)
    return y


def low_rank(
    x: jax.Array, groups: jax.Array, first: jax.Array, second: jax.Array, sizes: tuple[int, int], onto: jax.Array
) -> jax.Array:
    """See `layers.low_rank`. A row's sums are independent of other rows, and only the groups with rows are read."""
    rank, outputs = sizes
    counts = (groups[:, None] == jnp.arange(len(first), dtype=jnp.int32)[None]).sum(0, dtype=jnp.int32)
    return _grouped_linear(_grouped_linear(x, counts, first, rank, None), counts, second, outputs, onto)


def look_up(weight: Weight, ids: jax.Array, features: int) -> jax.Array:
    """See `layers.look_up`."""
    if isinstance(weight, Stored):
        return stored.look_up(weight, ids, features)
    load()
    result = jax.ShapeDtypeStruct((len(ids), features), jnp.float32)
    return jax.ffi.ffi_call("rekindle_look_up", result)(weight, ids.astype(jnp.int32))


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
