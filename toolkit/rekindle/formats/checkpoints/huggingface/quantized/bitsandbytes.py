"""bitsandbytes: NF4 and FP4 with a scale for each block of a flat stream, and int8 with a scale for each output.

In 4 bits, NAME.weight has the codes, high nibble first, `absmax` the scales, possibly quantized again to int8, and
`quant_state` a JSON object with the shape. In 8 bits, NAME.SCB has the scales.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import (
    DTYPES,
    Floats,
    OnDemand,
    QuantizedTensor,
    Read,
    Stored,
    ceil,
)
from rekindle.formats.model_file import parse_json
from rekindle_kernels.blocks import Array
from rekindle_kernels.quantized import Codes, Quantized

_STATE: Final = ".quant_state.bitsandbytes__"
_OF_127: Final = np.float32(7.874015718698502e-3)
"""1 / 127, as in the library."""
_MINUS_ZERO: Final = 8
_STORAGE: Final = ("U8", "BF16", "F16", "F32")
"""Dtypes of stored bytes."""


@dataclass(frozen=True, slots=True)
class _Scales:
    """Scales of the blocks: `absmax`, or codes of it in blocks with scales of their own."""

    absmax: Read
    code: Read | None = None
    nested: Read | None = None
    size: int = 1
    offset: float = 0.0

    def numbers(self) -> Floats:
        """Return the scale of each block, float32."""
        stored = self.absmax()
        if self.code is None or self.nested is None:
            return stored.astype(np.float32)
        outer = np.repeat(self.nested(), self.size)[: len(stored)]
        numbers: Floats = self.code()[stored] * outer + np.float32(self.offset)
        return numbers


def find_bitsandbytes(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the quantized tensors.

    Args:
        stored: the tensors of the checkpoint.
        options: the quantization's part of the config.

    Raises:
        CheckpointError: a tensor is missing or does not fit to its module.
        UnsupportedModel: the variant of the format is not supported.
    """
    for kind in ("nf4", "fp4"):
        for name in stored.ending(_STATE + kind):
            yield _four_bits(stored, name, name + _STATE + kind)
    for module in stored.ending(".SCB"):
        name, scale, layout = f"{module}.weight", f"{module}.SCB", f"{module}.weight_format"
        if layout in stored and stored.read(layout, ("U8",))().any():
            raise UnsupportedModel(
                f"{stored.source}: {name} is in another order than by row; save the model again with bitsandbytes 0.43 "
                "or later"
            )
        codes = stored.on_demand(name, ("I8",))
        shape = stored.shape(name)
        scales = stored.read(scale, ("F32",), shape[:1])
        yield QuantizedTensor(name, shape, (name, scale), partial(_int8, codes, scales), "bitsandbytes int8")


def _four_bits(stored: Stored, name: str, state: str) -> QuantizedTensor:
    options = _state(stored, state)
    try:
        outputs, inputs = map(int, options["shape"])
        size, kind, dtype = int(options["blocksize"]), str(options["quant_type"]), str(options["dtype"])
        nested = "nested_blocksize" in options
        outer, offset = (int(options["nested_blocksize"]), float(options["nested_offset"])) if nested else (1, 0.0)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{stored.source}: {state} lacks or has a wrong {error}. Fetch the model again"
        ) from error
    if min(outputs, inputs, size, outer) < 1:
        raise CheckpointError(f"{stored.source}: {state} must have sizes above 0. Fetch the model again")
    if inputs % 2:
        raise stored.refused(name, f"has {inputs} inputs, so that rows are not whole bytes, which is not supported")
    count, blocks = outputs * inputs // 2, ceil(outputs * inputs, size)
    codes = stored.on_demand(name, _STORAGE, *((count // width, 1) for width in (1, 2, 4)))
    table = stored.read(f"{name}.quant_map", ("F32",), (16,))
    scales = _Scales(stored.read(f"{name}.absmax", ("U8" if nested else "F32",), (blocks,)))
    if nested:
        code = stored.read(f"{name}.nested_quant_map", ("F32",), (256,))
        absmax = stored.read(f"{name}.nested_absmax", ("F32",), (ceil(blocks, outer),))
        scales = _Scales(scales.absmax, code, absmax, outer, offset)
    numbers = {"bfloat16": "BF16", "float16": "F16"}.get(dtype, "F32")
    load = partial(_load, codes, table, kind == "fp4", scales, (outputs, inputs), size, DTYPES[numbers])
    return QuantizedTensor(name, (outputs, inputs), (name, f"{name}.absmax"), load, f"bitsandbytes {kind.upper()}")


def _state(stored: Stored, name: str) -> Mapping[str, Any]:
    try:
        options = parse_json(bytes(stored.read(name, ("U8",))().reshape(-1)), stored.source)
    except ValueError as error:
        raise CheckpointError(f"{stored.source}: {name} is not valid JSON ({error}). Fetch the model again") from error
    if not isinstance(options, dict):
        raise CheckpointError(f"{stored.source}: {name} must be a JSON object. Fetch the model again")
    return options


def _load(
    codes: OnDemand, table: Read, fp4: bool, scales: _Scales, shape: tuple[int, int], size: int, dtype: np.dtype[Any]
) -> Quantized:
    outputs, inputs = shape
    data, factors = codes().view(np.uint8).reshape(outputs, inputs // 2), scales.numbers()
    numbers = table().copy()
    if fp4:
        numbers[_MINUS_ZERO] = -0.0  # in the file it is 0, and the library's kernels have their own table
    whole = inputs % size == 0

    def read(rows: slice) -> Codes:
        some = np.asarray(data[rows])
        swapped = some << np.uint8(4) | some >> np.uint8(4)
        if whole:
            scale = factors.reshape(outputs, -1)[rows]
        else:  # blocks cross the ends of rows
            places = np.arange(rows.start * inputs, rows.stop * inputs) // size
            scale = factors[places].reshape(-1, inputs)
        return Codes(swapped, inputs, numbers, size if whole else 1, scale, dtype)

    return Quantized(inputs, range(outputs), read)


def _int8(codes: OnDemand, scales: Read) -> Quantized:
    data, factors = codes(), scales()

    def read(rows: slice) -> Array:
        numbers: Floats = np.multiply(np.asarray(data[rows]), factors[rows, None], dtype=np.float32)
        numbers *= _OF_127
        return numbers

    return Quantized(data.shape[1], range(len(data)), read)
