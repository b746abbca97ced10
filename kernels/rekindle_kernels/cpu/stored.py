"""Linear layers over quantized blocks, in C++."""

import ctypes
from collections.abc import Iterable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.blocks import Array
from rekindle_kernels.cpu.library import load
from rekindle_kernels.cpu.norm import arguments_of
from rekindle_kernels.inputs import Gated, Input
from rekindle_kernels.storage import GROUP, MOST, Piece, Storage, Stored, layout_of

PANEL: Final = 32
"""Outputs in a panel."""


def packed(shape: tuple[int, int], storage: Storage) -> jax.ShapeDtypeStruct:
    """See `layers.packed`: panels of 32 outputs for each run, described in `source/stored.h`."""
    if storage.activations not in MOST:
        names = ", ".join(MOST)
        raise ValueError(f'native kernels have activations of {names}, not "{storage.activations}": take one of them')
    size = sum(_run_bytes(kind, rows, shape[1]) for kind, rows in storage.runs)
    return jax.ShapeDtypeStruct((size,), jnp.dtype(jnp.uint8))


def _run_bytes(kind: str, rows: int, inputs: int) -> int:
    layout = layout_of(kind)
    # A byte for each of the 8 scales and minima, which have 6 bits in files.
    block = layout.size + (4 if kind in ("Q4_K", "Q5_K") else 0)
    return -(-rows // PANEL) * PANEL * (inputs // layout.numbers) * block


def pack_blocks(pieces: Iterable[Piece], into: Array, storage: Storage) -> None:
    """See `layers.pack_blocks`."""
    write = load().rekindle_pack_stored
    for run, first, blocks in pieces:
        kind, _ = storage.runs[run]
        layout, data = layout_of(kind), np.ascontiguousarray(blocks)
        inputs = data.shape[1] // layout.size * layout.numbers
        offset = sum(_run_bytes(each, rows, inputs) for each, rows in storage.runs[:run])
        sizes = [*map(ctypes.c_int64, (layout.number, layout.numbers // GROUP))]
        place = (ctypes.c_void_p(into.ctypes.data + offset), ctypes.c_int64(first))
        write(*sizes, *place, ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(len(data)), ctypes.c_int64(inputs))


def linear(x: Input, weight: Stored, outputs: int, onto: jax.Array | None, *, columns: bool) -> jax.Array:
    """Compute `layers.linear`, or its transpose if `columns`. A row's sums are independent of other rows."""
    load()
    numbers = x if isinstance(x, jax.Array) else x.x
    shape = (outputs, len(numbers)) if columns else (len(numbers), outputs)
    call = jax.ffi.ffi_call("rekindle_stored_linear", jax.ShapeDtypeStruct(shape, jnp.float32))
    base = jnp.zeros((0, 0), jnp.float32) if onto is None else onto
    scales, bias, options = arguments_of(x)
    options |= {"columns": columns, "gated": isinstance(x, Gated)} | _runs(weight)
    most = np.int64(MOST[weight.storage.activations])
    y: jax.Array = call(numbers.astype(jnp.float32), weight.data, scales, bias, base, most=most, **options)
    return y


def grouped_linear(x: jax.Array, counts: jax.Array, weight: Stored, outputs: int) -> jax.Array:
    """See `layers.grouped_linear`. The sums are equal to `linear`."""
    load()
    call = jax.ffi.ffi_call("rekindle_stored_grouped_linear", jax.ShapeDtypeStruct((len(x), outputs), jnp.float32))
    most = np.int64(MOST[weight.storage.activations])
    y: jax.Array = call(x.astype(jnp.float32), counts, weight.data, **_runs(weight), most=most)
    return y


def look_up(weight: Stored, ids: jax.Array, features: int) -> jax.Array:
    """See `layers.look_up`. With activations of bfloat16, the numbers are those of a bfloat16 weight."""
    load()
    result = jax.ShapeDtypeStruct((len(ids), features), jnp.float32)
    call = jax.ffi.ffi_call("rekindle_stored_look_up", result)
    y: jax.Array = call(weight.data, ids.astype(jnp.int32), **_runs(weight))
    return y.astype(jnp.bfloat16).astype(y.dtype) if weight.storage.activations == "bfloat16" else y


def _runs(weight: Stored) -> dict[str, Any]:
    """Return the runs of a weight as attributes of a call."""
    layouts = [layout_of(kind) for kind, _ in weight.storage.runs]
    return {
        "kinds": np.array([layout.number for layout in layouts], np.int64),
        "groups": np.array([layout.numbers // GROUP for layout in layouts], np.int64),
        "rows": np.array([rows for _, rows in weight.storage.runs], np.int64),
    }
