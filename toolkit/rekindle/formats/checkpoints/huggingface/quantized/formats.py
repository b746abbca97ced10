"""The table of formats, and the opening of a checkpoint's files in one of them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rekindle.formats.checkpoints.huggingface.quantized.awq import find_awq
from rekindle.formats.checkpoints.huggingface.quantized.bitsandbytes import find_bitsandbytes
from rekindle.formats.checkpoints.huggingface.quantized.compressed import find_compressed
from rekindle.formats.checkpoints.huggingface.quantized.fp8 import find_fp8
from rekindle.formats.checkpoints.huggingface.quantized.gptq import find_gptq
from rekindle.formats.checkpoints.huggingface.quantized.mlx import find_mlx
from rekindle.formats.checkpoints.huggingface.quantized.modelopt import find_modelopt
from rekindle.formats.checkpoints.huggingface.quantized.mxfp4 import find_mxfp4
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import QuantizedTensor, Stored
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile
from rekindle.formats.families.quantization import method_of

Find = Callable[[Stored, Mapping[str, Any]], Iterator[QuantizedTensor]]

FORMATS: Final[Mapping[str, Find]] = {
    "awq": find_awq,
    "bitsandbytes": find_bitsandbytes,
    "compressed-tensors": find_compressed,
    "fbgemm_fp8": find_fp8,
    "fp8": find_fp8,
    "gptq": find_gptq,
    "mlx": find_mlx,
    "modelopt": find_modelopt,
    "mxfp4": find_mxfp4,
}
"""Finders of quantized tensors, by the method in the config."""


def with_quantized(
    files: Sequence[SafetensorsFile], settings: Mapping[str, Any], source: str
) -> tuple[SafetensorsFile, ...]:
    """Return the files of a checkpoint, with its quantized tensors in place of the stored ones.

    Args:
        files: the files.
        settings: the content of config.json, with a method of `FORMATS`.
        source: path of the model, for error messages.

    Raises:
        CheckpointError: a stored tensor is missing, or does not fit to its module and the config.
        UnsupportedModel: a variant of the format is not supported.
    """
    if (method := method_of(settings)) is None:
        return tuple(files)
    stored = Stored(source, {name: file for file in files for name in file.shapes})
    tensors = list(FORMATS[method.name](stored, method.options))
    consumed = {name for tensor in tensors for name in tensor.stored}
    return tuple(_with(file, [t for t in tensors if stored.files[t.stored[0]] is file], consumed) for file in files)


def formats_of(files: Sequence[SafetensorsFile]) -> tuple[str, ...]:
    """Return the formats of the quantized tensors of some files, the most frequent first."""
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(file.schemes)
    return tuple(name for name, _ in counts.most_common())


def _with(file: SafetensorsFile, tensors: Sequence[QuantizedTensor], consumed: Collection[str]) -> SafetensorsFile:
    """Return a file with quantized tensors, without the stored ones."""
    shapes = {name: shape for name, shape in file.shapes.items() if name not in consumed}
    return replace(
        file,
        shapes=shapes | {each.name: each.shape for each in tensors},
        quantized={each.name: each.load for each in tensors},
        schemes=Counter(each.scheme for each in tensors),
    )
