"""compressed-tensors, written by llm-compressor: packed integers, int8, FP8, NVFP4, MXFP4.

The file decides what is quantized: a module NAME has NAME.weight_packed, or NAME.weight in 8 bits with
NAME.weight_scale. The config says the bits and groups. Numbers have the dtype of the scales, as in the library.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.huggingface.quantized.compressed_schemes import Scheme, scheme_for, schemes_of
from rekindle.formats.checkpoints.huggingface.quantized.fp8 import grid_text
from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.bits import stored_codes, unpacked, words
from rekindle.formats.checkpoints.huggingface.quantized.parts.fp4 import NVFP4_GROUP, mxfp4, nvfp4
from rekindle.formats.checkpoints.huggingface.quantized.parts.grid import grid_of
from rekindle.formats.checkpoints.huggingface.quantized.parts.groups import by_inputs
from rekindle.formats.checkpoints.huggingface.quantized.parts.scaled import TABLES, scaled
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import (
    FLOATS,
    Floats,
    OnDemand,
    QuantizedTensor,
    Read,
    Stored,
    ceil,
)
from rekindle_kernels.quantized import Codes, Quantized


def find_compressed(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the quantized tensors.

    Args:
        stored: the tensors of the checkpoint.
        options: the quantization's part of the config.

    Raises:
        CheckpointError: a tensor is missing or does not fit to its scheme, or the config is wrong.
        UnsupportedModel: a format or a dtype is not supported.
    """
    schemes = schemes_of(options, stored.source)
    for module in stored.ending(".weight_packed"):
        scheme = scheme_for(schemes, module, stored.source)
        if not scheme.floating:
            yield _packed(stored, module, scheme)
        elif scheme.group == NVFP4_GROUP:
            yield nvfp4(stored, module, f"{module}.weight_packed", f"{module}.weight_global_scale", divides=True)
        else:
            yield mxfp4(stored, module)
    for module in stored.ending(".weight"):
        if stored.dtype(f"{module}.weight") in TABLES:
            yield _bytes(stored, module, scheme_for(schemes, module, stored.source))


def _bytes(stored: Stored, module: str, scheme: Scheme) -> QuantizedTensor:
    """Return a tensor in int8 or FP8."""
    name, scale = f"{module}.weight", f"{module}.weight_scale"
    if scheme.bits != 8 or scheme.floating != (stored.dtype(name) in tables.FP8):
        kind = f"{scheme.bits}-bit {'floats' if scheme.floating else 'integers'}"
        raise CheckpointError(f"{stored.source}: {name} must be of {kind} by its config, got {stored.dtype(name)}")
    shape = stored.shape(name)
    if len(shape) < 2:
        raise stored.wrong(name, "(..., out, in)", shape)
    grid = grid_of(stored, scale, shape, scheme.block, (scheme.group,) if scheme.group else ())
    text = f"{'FP8' if scheme.floating else 'int8'} ({grid_text(grid, shape, scheme.block)})"
    zeros = None if scheme.symmetric else f"{module}.weight_zero_point"
    return scaled(stored, name, scale, grid, text, zeros=zeros)


def _packed(stored: Stored, module: str, scheme: Scheme) -> QuantizedTensor:
    """Return a tensor of packed integers."""
    name, scale = f"{module}.weight_packed", f"{module}.weight_scale"
    shape, groups = stored.matrix(name), stored.shape(scale)
    if len(groups) != 2 or groups[0] != shape[0]:
        raise stored.wrong(scale, f"({shape[0]}, groups)", groups)
    outputs = shape[0]
    inputs = groups[1] * scheme.group if scheme.group else shape[1] * 32 // scheme.bits
    codes = stored.on_demand(name, ("I32",), (outputs, words(inputs, scheme.bits)))
    scales = stored.read(scale, FLOATS, (outputs, ceil(inputs, scheme.group or inputs)))
    zeros, order = f"{module}.weight_zero_point", f"{module}.weight_g_idx"
    packed_zeros = (words(outputs, scheme.bits), groups[1])
    offsets = None if scheme.symmetric else stored.read(zeros, ("I32",), packed_zeros)
    places = stored.read(order, ("I32", "I64"), (inputs,)) if order in stored else None
    whole = stored.read(f"{module}.weight_shape", ("I64", "I32"), (2,))
    load = partial(_load, stored.source, name, (outputs, inputs), scheme, codes, scales, offsets, places, whole)
    others = [each for each in (scale, zeros, order) if each in stored]
    text = f"{scheme.bits}-bit integers ({f'groups of {scheme.group}' if scheme.group else 'one scale an output'})"
    return QuantizedTensor(f"{module}.weight", (outputs, inputs), (name, *others), load, text)


def _load(
    source: str, name: str, shape: tuple[int, int], scheme: Scheme, codes: OnDemand, scales: Read, zeros: Read | None,
    places: Read | None, whole: Read,
) -> Quantized:  # fmt: skip
    outputs, inputs = shape
    if tuple(whole().tolist()) != shape:
        raise CheckpointError(
            f"{source}: {name} has {shape} numbers of {scheme.bits} bits by its config, and {tuple(whole().tolist())} "
            "by its weight_shape. Fetch the model again; if it was edited, correct its config"
        )
    bits, data, factors = scheme.bits, codes(), scales()
    half, dtype = np.float32(1 << bits - 1), factors.dtype
    less = None if zeros is None else unpacked(np.ascontiguousarray(zeros().T), bits, outputs).T
    size = scheme.group or inputs
    groups = by_inputs(None if places is None else places(), size)

    def read(rows: slice) -> Codes:
        table: Floats = (tables.UINT4 if bits <= 4 else tables.UINT8) - half
        stream = stored_codes(np.asarray(data[rows]), bits, inputs)
        offsets = None if less is None else less[rows].astype(np.float32) - half
        scale = factors[rows].astype(np.float32)
        return Codes(stream, inputs, table, size, scale, dtype, offsets, places=groups)

    return Quantized(inputs, range(outputs), read)
