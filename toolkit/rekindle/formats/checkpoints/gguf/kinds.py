"""Number kinds of GGUF tensors: floats, and blocks of quantized numbers.

The common kinds are dequantized here, in a few vectorized passes. The results equal the gguf library's bit for bit, in
a quarter of the time, and other threads can run during each pass. The library dequantizes all other kinds. CPU kernels
read blocks directly.

llama.cpp has a scale for each 32 numbers. A file of Rekindle with codes of larger groups repeats their scales, and its
metadata `rekindle.kinds` say so, as NAME=KIND for each tensor: such blocks are read as the codes that they were.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Final

import ml_dtypes
import numpy as np

from rekindle_kernels.blocks import Array, Blocks, Bytes, Kind, Tensor
from rekindle_kernels.quantized import TABLES, Codes, Quantized, Stack

Floats = np.ndarray[Any, np.dtype[np.float32]]

CODES: Final = "rekindle.kinds"
"""The key of the metadata about codes with one scale for several blocks."""
_CODE_NAMES: Final = {"Q4_0": "int4", "Q8_0": "int8"}
_INT8: Final = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
_INT4: Final = np.arange(-8, 8, dtype=np.float32)


def kind_of(code: int) -> Kind:
    """Return the kind for a code. Its `dequantize` raises NotImplementedError if the gguf library cannot read it.

    Raises:
        ValueError: the installed gguf library does not know the code.
    """
    if code in _KINDS:
        return _KINDS[code]
    if code in _OF_LIBRARY:
        name, numbers, size = _OF_LIBRARY[code]
        return Kind(name, numbers, size, partial(_dequantize, code))
    import gguf

    kind = gguf.GGMLQuantizationType(code)
    return Kind(kind.name, *gguf.GGML_QUANT_SIZES[kind], partial(gguf.dequantize, qtype=kind))


def check_readable(kind: Kind) -> None:
    """Raise NotImplementedError if nothing can read the numbers of a kind."""
    if kind.name not in _READABLE:
        kind.dequantize(np.zeros(kind.size, np.uint8))


def _dequantize(code: int, data: Bytes) -> Array:
    import gguf

    numbers: Array = gguf.dequantize(data, gguf.GGMLQuantizationType(code))
    return numbers


def multiplied(kind: Kind, factor: float) -> Kind:
    """Return a kind with all numbers multiplied by a float32 number of the file."""
    number = np.float32(factor)
    return replace(kind, dequantize=lambda data: kind.dequantize(data) * number, factor=float(number))


def with_codes(tensor: Tensor) -> Tensor:
    """Return blocks of 4-bit floats, MXFP4 and NVFP4, as codes; another tensor as it is."""
    if isinstance(tensor, Stack):
        return Stack(tuple(map(with_codes, tensor.members)))
    if not isinstance(tensor, Blocks) or tensor.kind.name not in _FLOATS or tensor.ndim < 2:
        return tensor
    if tensor.ndim == 3:
        return Stack(tuple(with_codes(tensor[place]) for place in range(len(tensor))))
    return Quantized(tensor.shape[-1], range(len(tensor)), partial(_float_codes, tensor))


def _float_codes(blocks: Blocks, rows: slice) -> Codes:
    some, (group, header) = blocks[rows], _FLOATS[blocks.kind.name]
    data = np.asarray(some.data).reshape(len(some), -1, blocks.kind.size)
    body = data[..., header:].reshape(len(some), -1, group // 2)
    stored, dtype = data[..., :header].reshape(len(some), -1), np.dtype(np.float32)
    if blocks.kind.name == "MXFP4":
        scales, dtype = np.ldexp(np.float32(1), stored.astype(np.int32) - 127), np.dtype(ml_dtypes.bfloat16)
    else:
        scales = _UE4M3[stored] * np.float32(blocks.kind.factor)
    return Codes(_pairs(body), blocks.shape[-1], TABLES["float4"], group, scales, dtype)


def _pairs(body: Bytes) -> Bytes:
    """Return codes with the first half of each group in low halves as codes in order, low halves first."""
    codes = np.concatenate([body & np.uint8(15), body >> np.uint8(4)], axis=-1).reshape(len(body), -1)
    pairs: Bytes = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return pairs


def codes_in(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the kinds of codes by the names of stored tensors."""
    entries = metadata.get(CODES, ())
    return dict(str(entry).rsplit("=", 1) for entry in entries if "=" in str(entry))


def with_groups(tensor: Tensor, kind: str) -> Tensor:
    """Return blocks as codes of a kind; a tensor that another program has written anew as it is."""
    if not isinstance(tensor, Blocks) or not kind.startswith(_CODE_NAMES.get(tensor.kind.name, "none") + ":"):
        return tensor
    group = kind.partition(":")[2]
    inputs = tensor.shape[-1]
    if not group.isdecimal() or not int(group) or int(group) % tensor.kind.numbers or inputs % int(group):
        return tensor
    if tensor.ndim == 3:
        return Stack(tuple(with_groups(tensor[place], kind) for place in range(len(tensor))))
    return Quantized(inputs, range(len(tensor)), partial(_codes, tensor, int(group)))


def _codes(blocks: Blocks, group: int, rows: slice) -> Codes | Array:
    """Return rows as codes, or as numbers if the blocks of a group have different scales."""
    some = blocks[rows]
    data = np.asarray(some.data).reshape(len(some), -1, blocks.kind.size)
    halves = np.ascontiguousarray(data[..., :2]).view(np.uint16).reshape(len(some), -1, group // blocks.kind.numbers)
    if (halves != halves[..., :1]).any():
        return np.asarray(some)
    scales = halves[..., 0].view(np.float16).astype(np.float32)
    inputs, dtype = blocks.shape[-1], np.dtype(np.float32)
    if blocks.kind.name == "Q8_0":
        return Codes(data[..., 2:].reshape(len(some), -1), inputs, _INT8, group, scales, dtype)
    return Codes(_pairs(data[..., 2:]), inputs, _INT4, group, scales, dtype)


def _q4_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 18)
    numbers = _nibbles(blocks[:, 2:])
    numbers -= np.float32(8)
    numbers *= _float16(blocks, 0)
    return numbers.reshape(-1)


def _q4_1(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 20)
    numbers = _nibbles(blocks[:, 4:])
    numbers *= _float16(blocks, 0)
    numbers += _float16(blocks, 2)
    return numbers.reshape(-1)


def _q8_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 34)
    return np.multiply(blocks[:, 2:].view(np.int8), _float16(blocks, 0), dtype=np.float32).reshape(-1)


def _mxfp4(data: Bytes) -> Array:
    blocks = data.reshape(-1, 17)
    numbers = np.empty((len(blocks), 32), np.float32)
    np.take(_TWICE_E2M1, blocks[:, 1:] & np.uint8(15), out=numbers[:, :16])
    np.take(_TWICE_E2M1, blocks[:, 1:] >> np.uint8(4), out=numbers[:, 16:])
    numbers *= np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return numbers.astype(ml_dtypes.bfloat16).reshape(-1)


def _nvfp4(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 36)
    groups = blocks[:, 4:].reshape(-1, 8)
    numbers = np.empty((len(groups), 16), np.float32)
    np.take(_TWICE_E2M1, groups & np.uint8(15), out=numbers[:, :8])
    np.take(_TWICE_E2M1, groups >> np.uint8(4), out=numbers[:, 8:])
    numbers *= (_UE4M3[blocks[:, :4]] * np.float32(0.5)).reshape(-1, 1)
    return numbers.reshape(-1)


def _nibbles(packed: Bytes) -> Floats:
    """Unpack (block, 16) bytes to (block, 32) numbers: first the low nibbles of a block, then the high nibbles."""
    numbers = np.empty((len(packed), 32), np.float32)
    numbers[:, :16] = packed & np.uint8(15)
    numbers[:, 16:] = packed >> np.uint8(4)
    return numbers


def _float16(blocks: Bytes, place: int) -> Floats:
    """Return the float16 number at a byte offset of each block, as (block, 1) float32."""
    return blocks[:, place : place + 2].view(np.float16).astype(np.float32)


_TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the E2M1 values; the halved scale, a power of two, is 2^(byte - 128)."""
_FLOATS: Final = {"MXFP4": (32, 1), "NVFP4": (16, 4)}
"""The numbers of a group, and the bytes of a block before its codes."""
_UE4M3 = (np.arange(256) & 127).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
_UE4M3[[127, 255]] = 0, 480
"""The scales of NVFP4 by their bytes, as the gguf library reads them."""
_KINDS: Mapping[int, Kind] = {
    0: Kind("F32", 1, 4, methodcaller("view", np.float32)),
    1: Kind("F16", 1, 2, methodcaller("view", np.float16)),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    30: Kind("BF16", 1, 2, methodcaller("view", ml_dtypes.bfloat16)),
    39: Kind("MXFP4", 32, 17, _mxfp4),
    40: Kind("NVFP4", 64, 36, _nvfp4),
}
_OF_LIBRARY: Final[Mapping[int, tuple[str, int, int]]] = {
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}
"""Kinds by code, dequantized by the gguf library, whose import only this needs."""
_READABLE: Final = {kind.name for kind in _KINDS.values()} | {name for name, *_ in _OF_LIBRARY.values()}
