"""Models as directories of safetensors in the format of compressed-tensors, which vLLM and transformers read."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.concurrency.progress import Report
from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.decoder import transposed_names
from rekindle.core.store.directory import sync
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.huggingface.weight_files import open_weight_files
from rekindle.formats.families.quantization import KEYS
from rekindle.formats.saving.codes import CodeRows, words
from rekindle.formats.saving.output import check_room, new_directory
from rekindle.formats.saving.tensors import NewTensor, WrittenBytes, float_dtype, of_floats, raw_bytes, row_pieces
from rekindle_kernels.blocks import Array, Tensor

_SMALL_FILES: Final = {".json", ".jinja", ".model", ".txt", ".tiktoken"}
"""The suffixes of the files beside the weights."""
_LENGTH_BYTES: Final = 8
"""Size of the header's length, at the start of a file."""


def save_safetensors(
    checkpoint: Checkpoint, kinds: Mapping[str, str], path: Path, report: Report, *, overwrite: bool
) -> int:
    """Write a model with quantized weights as a directory, and return the bytes of its weights.

    The embedding and the head keep their numbers, since readers of the format have no codes for them.

    Args:
        checkpoint: the model, from a Hugging Face directory.
        kinds: the kinds of codes to make of its matrices, by Hugging Face name.
        path: the path of the new directory.
        report: called after each piece; it may raise to end the writing.
        overwrite: whether to replace a model directory at the path.

    Raises:
        UnsupportedModel: the format has no form for the model.
        StorageError: the directory exists, cannot be written, or the disk is full.
    """
    source = _source(checkpoint)
    names = checkpoint.config.names
    tables = {f"{names.embedding}.weight", f"{names.head}.weight"}
    coded = {name: kind for name, kind in kinds.items() if name not in tables}
    _check(checkpoint, coded)
    tensors = [
        part for name in checkpoint.tensors for part in _tensors(name, checkpoint.tensors[name], coded.get(name))
    ]
    with new_directory(path, overwrite=overwrite) as temporary:
        check_room(temporary, sum(tensor.size for tensor in tensors))
        _copy_small_files(source, temporary)
        settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
        settings = {key: value for key, value in settings.items() if key not in KEYS}
        settings["quantization_config"] = quantization_config(checkpoint, coded)
        (temporary / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        return _write(temporary / "model.safetensors", tensors, f"writing {path.name}", report)


def quantization_config(checkpoint: Checkpoint, coded: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of `config.json` about the codes, by module.

    Args:
        checkpoint: the model.
        coded: the kinds of its matrices with codes, by name.
    """
    kinds = sorted(set(coded.values()))
    groups = {}
    for place, kind in enumerate(kinds):
        bits, _, size = kind.removeprefix("int").partition(":")
        modules = sorted(_module(name) for name, each in coded.items() if each == kind)
        weights: dict[str, Any] = {
            "actorder": None, "block_structure": None, "dynamic": False, "group_size": int(size), "num_bits": int(bits),
            "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int",
        }  # fmt: skip
        targets = ["Linear"] if len(kinds) == 1 else modules
        groups[f"group_{place}"] = {
            "input_activations": None, "output_activations": None, "targets": targets, "weights": weights,
        }  # fmt: skip
    matrices = [name for name, tensor in checkpoint.tensors.items() if tensor.ndim == 2 and name.endswith(".weight")]
    ignored = sorted(_module(name) for name in matrices if name not in coded)
    head = checkpoint.config.names.head
    return {
        "config_groups": groups,
        "format": "pack-quantized",
        "global_compression_ratio": None,
        "ignore": sorted({*ignored, head}),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _source(checkpoint: Checkpoint) -> Path:
    """Return the directory of a model; raise UnsupportedModel for a GGUF file."""
    if checkpoint.is_gguf:
        raise UnsupportedModel(
            f"{checkpoint.source} is a GGUF file, which has no config.json for safetensors: write a path with .gguf"
        )
    return checkpoint.files[0].parent


def _check(checkpoint: Checkpoint, coded: Mapping[str, str]) -> None:
    """Raise UnsupportedModel for matrices that are no linear modules under their own names."""
    stored = {name for file in open_weight_files(_source(checkpoint)) for name in file.shapes}
    plain = {name for name in checkpoint.tensors if checkpoint.tensors[name].ndim == 1}
    if missing := next((name for name in sorted(plain) if name not in stored), None):
        raise UnsupportedModel(
            f"{checkpoint.source} is a text model inside of another model, as its files have no {missing}: save the "
            "text model alone with transformers' save_pretrained, and quantize that"
        )
    turned = transposed_names(checkpoint.config)
    wrong = (name for name in sorted(coded) if name in turned or checkpoint.tensors[name].ndim != 2)
    if (name := next(wrong, None)) is not None:
        raise UnsupportedModel(
            f"{checkpoint.source}: {name} is no linear module of its own, and compressed-tensors has codes for those "
            "alone: write a GGUF file instead, to a path with .gguf, if llama.cpp has the architecture"
        )


def _tensors(name: str, tensor: Tensor, kind: str | None) -> Iterator[NewTensor]:
    """Yield the stored parts of a tensor: numbers, or words of codes, scales and the shape."""
    if kind is None:
        yield of_floats(name, tuple(tensor.shape), float_dtype(tensor), lambda: tensor)
        return
    outputs, inputs = tensor.shape
    bits, _, size = kind.removeprefix("int").partition(":")
    packed, scales = (outputs, inputs * int(bits) // 32), (outputs, inputs // int(size))
    numbers = partial(row_pieces, tensor)

    def of_words() -> Iterator[Array]:
        return (words(CodeRows.of(piece, kind)) for piece in numbers())

    def of_scales() -> Iterator[Array]:
        return (CodeRows.of(piece, kind).scales for piece in numbers())

    module = _module(name)
    yield NewTensor(f"{module}.weight_packed", packed, "I32", 4 * math.prod(packed), of_words)
    yield NewTensor(f"{module}.weight_scale", scales, "F32", 4 * math.prod(scales), of_scales)
    shape = np.array((outputs, inputs), np.int64)
    yield NewTensor(f"{module}.weight_shape", (2,), "I64", 16, lambda: iter([shape]))


def _write(path: Path, tensors: list[NewTensor], stage: str, report: Report) -> int:
    """Write a file piece by piece, and return its bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": tensor.form, "shape": tensor.shape, "data_offsets": [end, end + tensor.size]}
        end += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    counter = WrittenBytes(stage, end, report)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for tensor in tensors:
            for piece in tensor.pieces():
                data = raw_bytes(piece).data
                file.write(data)
                counter.add(len(data))
    sync(path)
    size = path.stat().st_size
    assert size == _LENGTH_BYTES + len(text) + end, "each tensor has its bytes"
    return size


def _copy_small_files(source: Path, target: Path) -> None:
    """Copy the files of the tokenizer, of chats and of the settings, and those in folders below."""
    for path in source.rglob("*"):
        relative = path.relative_to(source)
        is_hidden = any(part.startswith(".") for part in relative.parts)
        if path.suffix in _SMALL_FILES and not path.name.endswith(".index.json") and not is_hidden and path.is_file():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)


def _module(name: str) -> str:
    return name.removesuffix(".weight")
