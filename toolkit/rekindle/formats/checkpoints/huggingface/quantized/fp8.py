"""FP8 by `quant_method` "fp8": blocks (DeepSeek-V3, Qwen3, MiniMax-M2), or one scale for a matrix (Ministral 3).

The scales of NAME.weight, F8_E4M3, are in NAME.weight_scale_inv, and they multiply, despite the name. Scales of inputs
do not matter, because inputs stay wide.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.grid import Grid, grid_of
from rekindle.formats.checkpoints.huggingface.quantized.parts.scaled import scaled
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import DTYPES, QuantizedTensor, Stored

_SCALES: Final = ("_scale_inv", "_scale")


def find_fp8(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the tensors in FP8.

    Args:
        stored: the tensors of the checkpoint.
        options: the quantization's part of the config.

    Raises:
        CheckpointError: scales are missing or do not fit to their matrix, or the config is wrong.
    """
    block = block_size(options.get("weight_block_size"), stored.source)
    for name in stored.ending(""):
        scale = next((name + end for end in _SCALES if name + end in stored), name + _SCALES[0])
        weight = name.endswith(".weight") or scale in stored
        if not weight or stored.dtype(name) not in tables.FP8 or len(stored.shape(name)) < 2:
            continue
        grid = grid_of(stored, scale, stored.shape(name), block)
        yield scaled(
            stored, name, scale, grid, f"FP8 ({grid_text(grid, stored.shape(name), block)})", dtype=DTYPES["F32"]
        )


def block_size(size: Any, source: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block by a config, or None.

    Raises:
        CheckpointError: the value is neither null nor two positive integers.
    """
    if size is None:
        return None
    if isinstance(size, list) and len(size) == 2 and all(isinstance(each, int) and each > 0 for each in size):
        return size[0], size[1]
    raise CheckpointError(
        f"{source}: the block size in its quantization must be two positive integers, got {size!r:.80}"
    )


def grid_text(grid: Grid, shape: tuple[int, ...], block: tuple[int, int] | None) -> str:
    """Return words for the rectangles of a matrix with one scale, by the config or by the stored scales."""
    if block is not None:
        return f"blocks of {block[0]} x {block[1]}"
    if grid == Grid(*shape[-2:]):
        return "one scale a matrix"
    if grid.columns == shape[-1] and grid.rows == 1:
        return "one scale an output"
    return f"groups of {grid.columns}"
