"""MXFP4 tensors (Open Compute Project, Microscaling Formats, 2023): blocks of 32 4-bit numbers with a common scale.

For a tensor NAME of shape (experts, in, out), a checkpoint contains `NAME_blocks`, (experts, out, in / 32, 16) bytes
with two numbers each, low nibble first, and `NAME_scales`, (experts, out, in / 32) powers of two.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from rekindle.core.checkpoints.huggingface.safetensors_file import SafetensorsFile

Array = np.ndarray[Any, np.dtype[Any]]
Loader = Callable[[], Array]

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK = 32


def mxfp4_tensors(files: dict[str, SafetensorsFile]) -> Iterator[tuple[str, tuple[int, ...], Loader]]:
    """Yield the name, shape and loader of each MXFP4 tensor.

    Args:
        files: the file of each stored tensor, by name.
    """
    for name, file in files.items():
        whole = name.removesuffix(_BLOCKS)
        if whole == name or whole + _SCALES not in files:
            continue
        experts, outputs, blocks, _ = file.shapes[name]
        scales = files[whole + _SCALES].loader(whole + _SCALES, "U8")
        yield whole, (experts, blocks * _BLOCK, outputs), partial(_load, file.loader(name, "U8"), scales)


def _load(blocks: Loader, scales: Loader) -> Array:
    """Return the tensor as (experts, in, out) bfloat16. The conversion is exact."""
    pairs, powers = blocks(), scales()
    experts, outputs, count, _ = pairs.shape
    numbers = np.empty((experts, outputs, count * _BLOCK), ml_dtypes.bfloat16)
    for expert in range(experts):
        codes = np.stack([pairs[expert] & 0xF, pairs[expert] >> 4], axis=-1).reshape(outputs, count, _BLOCK)
        scale = powers[expert].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        scaled = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * scale[:, :, None]
        numbers[expert] = scaled.reshape(outputs, -1)
    return numbers.transpose(0, 2, 1)
