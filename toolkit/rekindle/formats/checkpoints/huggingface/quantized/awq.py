"""AWQ in the layout "gemm": four bits packed along the outputs, eight a word in another order, with zero points.

A module NAME has `qweight` (in, out / 8), `qzeros` (groups, out / 8) and `scales` (groups, out).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.bits import in_half_bytes
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import FLOATS, QuantizedTensor, Read, Stored, ceil
from rekindle_kernels.blocks import Array, Bytes
from rekindle_kernels.quantized import Codes, Quantized

_WORD: Final = 8
_NIBBLES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word with each of eight consecutive outputs."""


def find_awq(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the quantized tensors.

    Args:
        stored: the tensors of the checkpoint.
        options: the quantization's part of the config.

    Raises:
        CheckpointError: a tensor is missing or does not fit to the config.
        UnsupportedModel: the variant of the format is not supported.
    """
    bits, layout = options.get("bits", options.get("w_bit", 4)), str(options.get("version") or "gemm").lower()
    size = options.get("group_size", options.get("q_group_size", 128))
    if bits != 4 or layout != "gemm" or not isinstance(size, int):
        raise UnsupportedModel(
            f"{stored.source}: AWQ of {bits!r:.80} bits in groups of {size!r:.80} in the layout {layout!r:.80} is not "
            'supported, but 4 bits in the layout "gemm" are; open the unquantized model or a GGUF file of it'
        )
    for module in stored.ending(".qweight"):
        name, scale, zero = f"{module}.qweight", f"{module}.scales", f"{module}.qzeros"
        inputs, width = stored.matrix(name)
        group = size if size > 0 else inputs
        count, outputs = ceil(inputs, group), width * _WORD
        codes = stored.read(name, ("I32",))
        zeros = stored.read(zero, ("I32",), (count, width))
        scales = stored.read(scale, FLOATS, (count, outputs))
        text, load = f"AWQ (4 bits, groups of {group})", partial(_load, codes, zeros, scales, group)
        yield QuantizedTensor(f"{module}.weight", (outputs, inputs), (name, scale, zero), load, text)


def _load(codes: Read, zeros: Read, scales: Read, group: int) -> Quantized:
    data, factors = codes(), scales()
    inputs, outputs = len(data), factors.shape[1]
    offsets = _by_output(zeros(), range(outputs))

    def read(rows: slice) -> Codes:
        less = offsets[rows].astype(np.float32)
        scale = factors[:, rows].T.astype(np.float32)
        stream = in_half_bytes(_by_output(data, range(rows.start, rows.stop)))
        return Codes(stream, inputs, tables.UINT4, group, scale, factors.dtype, less)

    return Quantized(inputs, range(outputs), read)


def _by_output(packed: Array, rows: range) -> Bytes:
    """Return the codes of some outputs, (outputs, any), from (any, out / 8) words."""
    first = rows.start // _WORD
    some = np.ascontiguousarray(packed[:, first : -(-rows.stop // _WORD)])
    nibbles = some.view(np.uint8).reshape(*some.shape, 4)
    codes = np.empty((some.shape[1], _WORD, len(some)), np.uint8)
    for place, nibble in enumerate(_NIBBLES):
        byte = nibbles[..., nibble // 2].T
        codes[:, place] = byte >> 4 if nibble % 2 else byte & 15
    whole = codes.reshape(-1, len(some))
    return whole[rows.start - first * _WORD :][: len(rows)]
