"""Number kinds of GGUF tensors: floats, and blocks of quantized numbers.

The common kinds are dequantized here, in a few vectorized passes. The results equal the gguf library's bit for bit, in
a quarter of the time, and other threads can run during each pass. The library dequantizes all other kinds. CPU kernels
read blocks directly.
"""

from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from typing import Any

import ml_dtypes
import numpy as np

from rekindle_kernels.blocks import Array, Bytes, Kind

Floats = np.ndarray[Any, np.dtype[np.float32]]


def kind_of(code: int) -> Kind:
    """Return the kind for a code. Its `dequantize` raises NotImplementedError if the gguf library cannot read it.

    Raises:
        ValueError: the installed gguf library does not know the code.
    """
    if code in _KINDS:
        return _KINDS[code]
    import gguf

    kind = gguf.GGMLQuantizationType(code)
    return Kind(kind.name, *gguf.GGML_QUANT_SIZES[kind], partial(gguf.dequantize, qtype=kind))


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
_KINDS: Mapping[int, Kind] = {
    0: Kind("F32", 1, 4, methodcaller("view", np.float32)),
    1: Kind("F16", 1, 2, methodcaller("view", np.float16)),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    30: Kind("BF16", 1, 2, methodcaller("view", ml_dtypes.bfloat16)),
    39: Kind("MXFP4", 32, 17, _mxfp4),
}
