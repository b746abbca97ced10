"""Codes of quantized rows in the layouts of other programs."""

from typing import Any, Final, NamedTuple

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle_kernels.blocks import Array, Bytes
from rekindle_kernels.encode import LARGEST_HALF, encode
from rekindle_kernels.storage import layout_of

Floats = np.ndarray[Any, np.dtype[np.float32]]

BLOCK: Final = 32
"""The numbers of a block of Q4_0 and Q8_0, with one scale."""
BLOCK_BYTES: Final = {"Q4_0": 18, "Q8_0": 34}
"""The bytes of a block."""


class CodeRows(NamedTuple):
    """Rows of codes around zero.

    Attributes:
        bits: the bits of a code.
        codes: (rows, groups, size) int8, from -8 to 7, or from -127 to 127.
        scales: (rows, groups) float32.
    """

    bits: int
    codes: Array
    scales: Floats

    @classmethod
    def of(cls, numbers: Array, kind: str) -> "CodeRows":
        """Return the codes of (rows, inputs) numbers: those of a session with `quantize=`."""
        bits, size = 4 if kind.startswith("int4") else 8, layout_of(kind).size
        blocks = np.asarray(encode(numbers, kind).data).reshape(len(numbers), -1, size)
        scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)[..., 0]
        data = blocks[..., 4:]
        if bits == 8:
            return cls(bits, data.view(np.int8), scales)
        codes = np.empty((*data.shape[:2], 2 * data.shape[2]), np.int8)
        codes[..., ::2], codes[..., 1::2] = data & np.uint8(15), data >> np.uint8(4)
        return cls(bits, codes - np.int8(8), scales)


def ggml_kind(kind: str) -> str:
    """Return the kind of llama.cpp's blocks for a kind of codes."""
    return "Q4_0" if kind.startswith("int4") else "Q8_0"


def ggml_blocks(rows: CodeRows, name: str) -> Bytes:
    """Return rows as blocks of Q4_0 or Q8_0, (rows, bytes); the blocks of a group have its scale.

    Raises:
        UnsupportedModel: a scale is larger than all numbers of float16; `name` is the tensor in the message.
    """
    if (np.abs(rows.scales) > LARGEST_HALF).any():
        raise UnsupportedModel(
            f"{name} has numbers too large for the scales of llama.cpp's blocks, at most {LARGEST_HALF:.0f}: write it "
            "as safetensors"
        )
    count, groups, size = rows.codes.shape
    codes = rows.codes.reshape(count, -1, BLOCK)
    scales = np.repeat(rows.scales.astype(np.float16), size // BLOCK, axis=1)[..., None].view(np.uint8)
    if rows.bits == 8:
        body = codes.view(np.uint8)
    else:
        nibbles = (codes + np.int8(8)).view(np.uint8)
        body = nibbles[..., : BLOCK // 2] | nibbles[..., BLOCK // 2 :] << np.uint8(4)
    return np.concatenate([scales, body], axis=-1).reshape(count, -1)


def words(rows: CodeRows) -> Array:
    """Return the codes of rows in 32-bit words, (rows, words) int32, low bits first, as in compressed-tensors."""
    unsigned = (rows.codes.reshape(len(rows.codes), -1).astype(np.int16) + (1 << rows.bits - 1)).astype(np.uint8)
    if rows.bits == 4:
        unsigned = unsigned[:, ::2] | unsigned[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(unsigned).view("<i4")
