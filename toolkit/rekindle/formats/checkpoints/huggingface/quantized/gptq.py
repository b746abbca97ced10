"""GPTQ: integers packed along the inputs, with zero points, and act-order by `g_idx`.

A module NAME has `qweight` (in * bits / 32, out), `qzeros` (groups, out * bits / 32), `scales` (groups, out) and
perhaps `g_idx`, the group of each input. Version 1 stores zero points minus 1; some files say so and are of version 2.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.bits import stored_codes, unpacked, words
from rekindle.formats.checkpoints.huggingface.quantized.parts.groups import by_inputs
from rekindle.formats.checkpoints.huggingface.quantized.parts.patterns import is_match
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import FLOATS, QuantizedTensor, Read, Stored, ceil
from rekindle_kernels.blocks import Array, Bytes
from rekindle_kernels.quantized import Codes, Quantized

BITS: Final = (2, 3, 4, 8)
_VERSIONS: Final = ("gptq", "gptq_v2")


def find_gptq(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the quantized tensors.

    Args:
        stored: the tensors of the checkpoint.
        options: the quantization's part of the config.

    Raises:
        CheckpointError: a tensor is missing or does not fit to the config.
        UnsupportedModel: the variant of the format is not supported.
    """
    version = options.get("checkpoint_format") or "gptq"
    if version not in _VERSIONS:
        raise UnsupportedModel(
            f"{stored.source}: GPTQ in the format {version!r:.80} is not supported, but {', '.join(_VERSIONS)} are; "
            "open the unquantized model or a GGUF file of it"
        )
    for module in stored.ending(".qweight"):
        yield _matrix(stored, module, _of_module(options, module, stored.source), second=version == "gptq_v2")


def _of_module(options: Mapping[str, Any], module: str, source: str) -> dict[str, Any]:
    """Return the options of a module, updated by the first pattern for its name.

    Raises:
        CheckpointError: the patterns are not an object of options.
    """
    dynamic = options.get("dynamic") or {}
    if not isinstance(dynamic, Mapping) or not all(isinstance(own, Mapping | None) for own in dynamic.values()):
        raise CheckpointError(
            f"{source}: dynamic in its quantization must be an object of objects, got {dynamic!r:.80}"
        )
    for pattern, own in dynamic.items():
        if not pattern.startswith("-:") and is_match(pattern.removeprefix("+:"), module, source):
            return {**options, **(own or {})}
    return dict(options)


def _matrix(stored: Stored, module: str, options: Mapping[str, Any], *, second: bool) -> QuantizedTensor:
    bits, size = options.get("bits"), options.get("group_size")
    if bits not in BITS or not isinstance(size, int):
        raise UnsupportedModel(
            f"{stored.source}: GPTQ of {bits!r:.80} bits in groups of {size!r:.80} ({module}) is not supported; "
            f"supported are {', '.join(map(str, BITS))} bits. Open the unquantized model or a GGUF file of it"
        )
    name, index = f"{module}.qweight", f"{module}.g_idx"
    height, outputs = stored.matrix(name)
    ordered = index in stored or bool(options.get("desc_act"))
    inputs = math.prod(stored.shape(index)) if ordered else height * 32 // bits
    group = size if size > 0 else max(1, inputs)
    count = ceil(inputs, group)
    codes = stored.read(name, ("I32",), (words(inputs, bits), outputs))
    zeros = stored.read(f"{module}.qzeros", ("I32",), (count, words(outputs, bits)))
    scales = stored.read(f"{module}.scales", FLOATS, (count, outputs))
    places = stored.read(index, ("I32",), (inputs,)) if ordered else None
    load = partial(
        _load,
        stored.source,
        name,
        codes,
        zeros,
        scales,
        places,
        bits,
        group,
        (outputs, inputs),
        options.get("sym"),
        second,
    )
    names = [name, f"{module}.qzeros", f"{module}.scales", *([index] if places else [])]
    return QuantizedTensor(
        f"{module}.weight", (outputs, inputs), tuple(names), load, f"GPTQ ({bits} bits, groups of {group})"
    )


def _load(
    source: str, name: str, codes: Read, zeros: Read, scales: Read, places: Read | None, bits: int, size: int,
    shape: tuple[int, int], symmetric: bool | None, second: bool,
) -> Quantized:  # fmt: skip
    outputs, inputs = shape
    data, factors = codes(), scales()
    offsets = _zeros(unpacked(zeros(), bits, outputs), bits, symmetric, second)
    order = None if places is None else places()
    if order is not None and not (order.min() >= 0 and order.max() < len(factors)):
        raise CheckpointError(
            f"{source}: {name} has inputs of the groups {order.min()} to {order.max()} by its g_idx, expected 0 to "
            f"{len(factors) - 1}. Fetch the model again"
        )
    groups = by_inputs(order, size)

    def read(rows: slice) -> Codes:
        stream = np.ascontiguousarray(data[:, rows].T).view(np.uint8)
        table = tables.UINT4 if bits <= 4 else tables.UINT8
        less, scale = (each[:, rows].T.astype(np.float32) for each in (offsets, factors))
        codes = stored_codes(stream, bits, inputs)
        return Codes(codes, inputs, table, size, scale, factors.dtype, less, places=groups)

    return Quantized(inputs, range(outputs), read)


def _zeros(stored: Bytes, bits: int, symmetric: bool | None, second: bool) -> Array:
    """Return zero points. Symmetric weights tell the version: they have half of the codes, or 1 less."""
    half = 1 << bits - 1
    if symmetric and (stored == stored.flat[0]).all() and stored.flat[0] in (half - 1, half):
        second = bool(stored.flat[0] == half)
    return stored if second else stored + np.uint8(1) & np.uint8((1 << bits) - 1)
