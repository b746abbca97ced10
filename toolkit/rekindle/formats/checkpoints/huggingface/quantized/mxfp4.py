"""Experts in MXFP4, in gpt-oss (Open Compute Project, Microscaling Formats, 2023).

For a tensor NAME of shape (experts, in, out), a checkpoint contains `NAME_blocks`, (experts, out, in / 32, 16) bytes
with two numbers each, low nibble first, and `NAME_scales`, (experts, out, in / 32) powers of two.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from rekindle.formats.checkpoints.huggingface.quantized.parts.fp4 import MXFP4_GROUP, mxfp4_matrix
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import OnDemand, QuantizedTensor, Stored
from rekindle_kernels.quantized import Stack, Turned

_BLOCKS, _SCALES = "_blocks", "_scales"
_HALF: Final = MXFP4_GROUP // 2


def find_mxfp4(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the experts in MXFP4.

    Raises:
        CheckpointError: a tensor is missing or has a wrong shape.
    """
    for name in stored.ending(_BLOCKS):
        shape = stored.shape(name + _BLOCKS)
        if len(shape) != 4 or shape[3] != _HALF:
            raise stored.wrong(name + _BLOCKS, f"(experts, out, in / {MXFP4_GROUP}, {_HALF})", shape)
        experts, outputs, groups, _ = shape
        blocks = stored.on_demand(name + _BLOCKS, ("U8",))
        scales = stored.on_demand(name + _SCALES, ("U8",), shape[:3])
        whole = (experts, groups * MXFP4_GROUP, outputs)
        yield QuantizedTensor(name, whole, (name + _BLOCKS, name + _SCALES), partial(_load, blocks, scales), "MXFP4")


def _load(blocks: OnDemand, scales: OnDemand) -> Stack:
    data, exponents = blocks(), scales()
    experts, outputs, *_ = data.shape
    data = data.reshape(experts, outputs, -1)
    return Stack(tuple(Turned(mxfp4_matrix(data[i], exponents[i])) for i in range(experts)))
