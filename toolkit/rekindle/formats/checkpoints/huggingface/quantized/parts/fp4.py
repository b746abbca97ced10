"""Four-bit floats E2M1, two a byte with the low nibble first: NVFP4 in groups of 16, MXFP4 in groups of 32."""

from functools import partial
from typing import Final

import numpy as np

from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.scaled import POWERS
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import (
    DTYPES,
    OnDemand,
    QuantizedTensor,
    Read,
    Stored,
    powers,
)
from rekindle_kernels.blocks import FileArray
from rekindle_kernels.quantized import Codes, Quantized

NVFP4_GROUP: Final = 16
MXFP4_GROUP: Final = 32


def nvfp4(stored: Stored, module: str, name: str, whole: str, *, divides: bool) -> QuantizedTensor:
    """Return a tensor in NVFP4.

    Args:
        stored: the tensors.
        module: the module's name.
        name: the stored name of the codes.
        whole: the stored name of the scale of the whole tensor.
        divides: True if that scale divides the groups' scales, and numbers are bfloat16 (compressed-tensors); False if
            it multiplies them, and numbers are float32 (ModelOpt).

    Raises:
        CheckpointError: a tensor is missing or does not have its shape.
        UnsupportedModel: a tensor has another dtype.
    """
    codes = stored.on_demand(name, ("U8",))
    outputs, inputs = stored.matrix(name)[0], stored.matrix(name)[1] * 2
    scale = f"{module}.weight_scale"
    scales = stored.on_demand(scale, ("F8_E4M3",), (outputs, inputs // NVFP4_GROUP))
    load = partial(_nvfp4, codes, scales, stored.read(whole, ("F32",), (1,), ()), divides)
    return QuantizedTensor(f"{module}.weight", (outputs, inputs), (name, scale, whole), load, "NVFP4")


def _nvfp4(codes: OnDemand, scales: OnDemand, whole: Read, divides: bool) -> Quantized:
    data, factors, factor = codes(), scales(), np.float32(whole().reshape(-1)[0])
    dtype = DTYPES["BF16" if divides else "F32"]

    def read(rows: slice) -> Codes:
        scale = np.asarray(factors[rows], np.float32)
        scale = scale / factor if divides else scale * factor
        return Codes(np.asarray(data[rows]), data.shape[1] * 2, tables.E2M1, NVFP4_GROUP, scale, dtype)

    return Quantized(data.shape[1] * 2, range(len(data)), read)


def mxfp4(stored: Stored, module: str) -> QuantizedTensor:
    """Return a tensor in MXFP4, bfloat16 without rounding.

    Raises:
        CheckpointError: a tensor is missing or does not have its shape.
        UnsupportedModel: a tensor has another dtype.
    """
    name, scale = f"{module}.weight_packed", f"{module}.weight_scale"
    codes = stored.on_demand(name, ("U8",))
    outputs, inputs = stored.matrix(name)[0], stored.matrix(name)[1] * 2
    scales = stored.on_demand(scale, POWERS, (outputs, inputs // MXFP4_GROUP))
    load = partial(_mxfp4, codes, scales)
    return QuantizedTensor(f"{module}.weight", (outputs, inputs), (name, scale), load, "MXFP4")


def _mxfp4(codes: OnDemand, scales: OnDemand) -> Quantized:
    return mxfp4_matrix(codes(), scales().view(np.uint8))


def mxfp4_matrix(data: FileArray, exponents: FileArray) -> Quantized:
    """Return a matrix (rows, inputs) from (rows, inputs / 2) bytes and (rows, inputs / 32) exponents."""

    def read(rows: slice) -> Codes:
        scales = powers(np.asarray(exponents[rows]))
        return Codes(np.asarray(data[rows]), data.shape[1] * 2, tables.E2M1, MXFP4_GROUP, scales, DTYPES["BF16"])

    return Quantized(data.shape[1] * 2, range(len(data)), read)
