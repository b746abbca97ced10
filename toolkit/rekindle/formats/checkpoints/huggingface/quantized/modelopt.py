"""ModelOpt of NVIDIA: FP8 with one scale for a matrix or an output, and NVFP4, each decided by the stored tensors."""

from collections.abc import Iterator, Mapping
from typing import Any

from rekindle.formats.checkpoints.huggingface.quantized.fp8 import find_fp8
from rekindle.formats.checkpoints.huggingface.quantized.parts.fp4 import nvfp4
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import QuantizedTensor, Stored


def find_modelopt(stored: Stored, options: Mapping[str, Any]) -> Iterator[QuantizedTensor]:
    """Yield the quantized tensors.

    Raises:
        CheckpointError: a tensor is missing or does not fit to its module.
        UnsupportedModel: a tensor has an unsupported dtype, or inputs have scales too.
    """
    for module in stored.ending(".pre_quant_scale"):
        raise stored.refused(f"{module}.pre_quant_scale", "scales the inputs of a product, which is not supported")
    for module in stored.ending(".weight_scale_2"):
        yield nvfp4(stored, module, f"{module}.weight", f"{module}.weight_scale_2", divides=False)
    yield from find_fp8(stored, options)
