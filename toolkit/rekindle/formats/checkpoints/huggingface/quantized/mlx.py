"""MLX: unsigned integers `scale * code + bias` in groups of inputs, or small floats with powers of two as scales.

A module NAME has `weight`, 32-bit words of a stream of codes, `scales`, and `biases` of integers; embeddings too. All
experts of a layer are one stack, NAME.switch_mlp.gate_proj, instead of a module for each expert.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.bits import stored_codes
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import (
    DTYPES,
    FLOATS,
    Floats,
    OnDemand,
    QuantizedTensor,
    Stored,
    powers,
)
from rekindle_kernels.blocks import FileArray, Tensor
from rekindle_kernels.quantized import Codes, Quantized, Stack

BITS: Final = (2, 3, 4, 5, 6, 8)
SMALL_FLOATS: Final[Mapping[str, tuple[int, int, Floats]]] = {
    "mxfp4": (4, 32, tables.E2M1),
    "nvfp4": (4, 16, tables.E2M1),
    "mxfp8": (8, 32, tables.E4M3),
}
"""Bits, numbers in a group, and table of each mode besides "affine"."""
DEFAULTS: Final[Mapping[str, Any]] = {"group_size": 64, "bits": 4, "mode": "affine"}
"""MLX's options of a module with an entry of its own, which takes none of the model's."""
_STACK: Final = ".switch_mlp."
_EXPERT_NAMES: Final = {"block_sparse_moe": {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}}
"""Names of an expert's projections in other checkpoints, by the name of the layer; equal elsewhere."""


def find_mlx(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the quantized tensors, and each expert of a stack.

    Args:
        stored: the tensors of the checkpoint.
        options: the quantization's part of the config, with options of modules by their names.

    Raises:
        CheckpointError: a tensor is missing or does not fit to the config.
        UnsupportedModel: the variant of the format is not supported.
    """
    for module in stored.ending(".scales"):
        own = options.get(module)
        yield from _module(stored, module, {**DEFAULTS, **own} if isinstance(own, Mapping) else options)
    for module in stored.ending(".weight"):
        name = f"{module}.weight"
        if _STACK in name and stored.dtype(name) in FLOATS:
            whole = stored.on_demand(name, FLOATS)
            yield from _experts(name, stored.shape(name), (name,), partial(_plain, whole), "stacks of experts")


def _module(stored: Stored, module: str, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    mode = str(options.get("mode") or "affine")
    bits, size, table = SMALL_FLOATS.get(mode, (options.get("bits"), options.get("group_size"), tables.UINT8))
    if (mode != "affine" and mode not in SMALL_FLOATS) or bits not in BITS or not isinstance(size, int) or size < 1:
        raise UnsupportedModel(
            f"{stored.source}: {module} in the mode {mode!r:.80} of MLX with {bits!r:.80} bits in groups of "
            f"{size!r:.80} is not supported; supported are affine with {', '.join(map(str, BITS))} bits, and "
            f"{', '.join(SMALL_FLOATS)}. Open the unquantized model or a GGUF file of it"
        )
    name, scale, bias = f"{module}.weight", f"{module}.scales", f"{module}.biases"
    if len(stored.shape(name)) < 2:
        raise stored.wrong(name, "(..., out, words)", stored.shape(name))
    *stack, outputs, width = stored.shape(name)
    inputs = width * 32 // bits
    shape = (*stack, outputs, inputs // size)
    if mode == "affine":
        scales, biases = stored.on_demand(scale, FLOATS, shape), stored.on_demand(bias, FLOATS, shape)
        load, text = partial(_affine, biases, bits), f"MLX ({bits} bits, groups of {size})"
    else:
        scales = stored.on_demand(scale, ("U8",), shape)
        load, text = partial(_small_floats, mode == "nvfp4", table), f"MLX ({mode})"
    names = (name, scale, *([bias] if mode == "affine" else []))
    whole = partial(_load, stored.on_demand(name, ("U32",)), scales, load, inputs, size)
    if _STACK in name:
        yield from _experts(name, (*stack, outputs, inputs), names, whole, text)
    else:
        yield QuantizedTensor(name, (*stack, outputs, inputs), names, whole, text)


def _experts(
    name: str, shape: tuple[int, ...], stored: tuple[str, ...], load: Callable[[int], Tensor], scheme: str
) -> Iterator[QuantizedTensor]:
    """Yield the experts of a stack, under their own names."""
    layer, _, projection = name.removesuffix(".weight").partition(_STACK)
    if len(shape) != 3:
        raise CheckpointError(f"{name} must be a stack (experts, out, in), got the shape {shape}")
    own = _EXPERT_NAMES.get(layer.rpartition(".")[2], {}).get(projection, projection)
    for expert in range(shape[0]):
        yield QuantizedTensor(
            f"{layer}.experts.{expert}.{own}.weight", shape[1:], stored, partial(load, expert), scheme
        )


def _plain(whole: OnDemand, member: int) -> FileArray:
    return whole()[member]


def _load(
    codes: OnDemand, scales: OnDemand, of: Callable[..., Quantized], inputs: int, size: int, member: int | None = None
) -> Quantized | Stack:
    data, factors = codes(), scales()
    if member is not None or data.ndim == 2:
        some = slice(None) if member is None else member
        return of(data[some], factors[some], member, inputs, size)
    return Stack(tuple(of(data[i], factors[i], i, inputs, size) for i in range(len(data))))


def _affine(
    biases: OnDemand, bits: int, data: FileArray, factors: FileArray, member: int | None, inputs: int, size: int
) -> Quantized:
    offsets = biases() if member is None else biases()[member]
    table = tables.UINT4 if bits <= 4 else tables.UINT8

    def read(rows: slice) -> Codes:
        stream = stored_codes(np.asarray(data[rows]), bits, inputs)
        scale, more = (np.asarray(each[rows], np.float32) for each in (factors, offsets))
        return Codes(stream, inputs, table, size, scale, factors.dtype, biases=more)

    return Quantized(inputs, range(len(data)), read)


def _small_floats(
    nvfp4: bool, table: Floats, data: FileArray, factors: FileArray, _: int | None, inputs: int, size: int
) -> Quantized:
    def read(rows: slice) -> Codes:
        stream = np.ascontiguousarray(data[rows]).view(np.uint8)
        some = np.asarray(factors[rows])
        scale = some.view(ml_dtypes.float8_e4m3fn).astype(np.float32) if nvfp4 else powers(some)
        return Codes(stream, inputs, table, size, scale, DTYPES["BF16"])

    return Quantized(inputs, range(len(data)), read)
