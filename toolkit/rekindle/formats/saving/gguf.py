"""Models as GGUF files: from another GGUF file, whose metadata are kept, or from a Hugging Face directory."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.concurrency.collector import collector_paused
from rekindle.core.concurrency.progress import Report
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.decoder import transposed_names
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.gguf.checkpoint import open_gguf
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.gguf.kinds import CODES
from rekindle.formats.checkpoints.gguf.places import AnyPlace, TensorPlace, find_places
from rekindle.formats.checkpoints.gguf.split import open_gguf_files
from rekindle.formats.saving.codes import BLOCK, BLOCK_BYTES, CodeRows, ggml_blocks, ggml_kind
from rekindle.formats.saving.gguf_file import MetadataValue, NewFile, field_of, write_gguf
from rekindle.formats.saving.gguf_metadata import architecture_of, check_limits, differences, metadata_of, rope_tensors
from rekindle.formats.saving.gguf_names import new_places, stored_numbers
from rekindle.formats.saving.gguf_vocabulary import check_tokens, vocabulary_of
from rekindle.formats.saving.output import new_file
from rekindle.formats.saving.tensors import NewTensor, float_dtype, of_floats, row_pieces
from rekindle_kernels.blocks import Array, Blocks, Tensor

_TEMPLATE: Final = "tokenizer.chat_template"
_REPLACED: Final = ("GGUF.", "split.", "quantize.", "rekindle.")
"""The beginnings of keys that are not copied from another file."""
_FILE_TYPES: Final = {"Q4_0": 2, "Q8_0": 7}
"""llama.cpp's numbers for files with mostly these blocks."""
_VERSION: Final = 2
"""The version of the layout of ggml's blocks."""


def save_gguf(checkpoint: Checkpoint, kinds: Mapping[str, str], path: Path, report: Report, *, overwrite: bool) -> int:
    """Write a model with quantized weights as a GGUF file, and return its bytes.

    Args:
        checkpoint: the model.
        kinds: the kinds of codes to make of its matrices, by Hugging Face name.
        path: the path of the new file.
        report: called after each piece; it may raise to end the writing.
        overwrite: whether to replace a file at the path.

    Raises:
        UnsupportedModel: llama.cpp cannot read the model, or reads another one.
        StorageError: the file exists, cannot be written, or the disk is full.
    """
    with new_file(path, overwrite=overwrite) as temporary:
        with collector_paused():  # a vocabulary and its merges are a hundred thousand objects
            new = _from_file(checkpoint, kinds) if checkpoint.is_gguf else _from_directory(checkpoint, kinds, path.stem)
        return write_gguf(temporary, new, f"writing {path.name}", report, partial(_check, checkpoint))


def _check(checkpoint: Checkpoint, path: Path) -> None:
    """Read the header of a new file, and raise UnsupportedModel unless it describes the same model."""
    try:
        with collector_paused():
            stored = open_gguf(path)
    except (CheckpointError, UnsupportedModel) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise UnsupportedModel(
            f"{checkpoint.source}: a GGUF file has no form for this model ({reason}): write safetensors instead, to a "
            "path without .gguf (--format safetensors)"
        ) from error
    if facts := differences(checkpoint.config, stored.config):
        raise UnsupportedModel(
            f"{checkpoint.source}: a file of llama.cpp's {stored.family} would lose its {', '.join(facts)}: write "
            "safetensors instead, to a path without .gguf (--format safetensors)"
        )
    check_tokens(checkpoint.tokenizer, stored.tokenizer, checkpoint.source)


def _from_file(checkpoint: Checkpoint, kinds: Mapping[str, str]) -> NewFile:
    """Return the content of a GGUF file with other kinds of numbers."""
    file = open_gguf_files(checkpoint.files[0])
    architecture = ARCHITECTURES[str(file.metadata["general.architecture"])]
    places = find_places(file, architecture, checkpoint.config, checkpoint.source)
    stored = dict(_stored_kinds(places, kinds, checkpoint.source))
    tensors = [
        _coded(name, shape, stored[name], partial(file.read, name)) if name in stored else _copied(file, name)
        for name, shape in file.shapes.items()
    ]
    fields = dict(_fields_of(file))
    template = checkpoint.tokenizer.chat_template if checkpoint.tokenizer is not None else None
    if template is not None:
        fields[_TEMPLATE] = field_of(template)
    return NewFile(architecture.name, fields | _facts(stored), tensors)


def _from_directory(checkpoint: Checkpoint, kinds: Mapping[str, str], title: str) -> NewFile:
    """Return the content of a GGUF file for a Hugging Face directory."""
    config, source = checkpoint.config, checkpoint.source
    architecture = architecture_of(config, source)
    check_limits(config, architecture, source)
    places, transposed = new_places(architecture, config, source), transposed_names(config)
    metadata = {"general.name": Path(source).name or title, **metadata_of(config, architecture)}
    metadata |= vocabulary_of(checkpoint.tokenizer, checkpoint.eos_ids, config.vocab_size, source)
    stored = {place.names[0]: kinds[each] for each, place in places.items() if each in kinds}
    tensors = rope_tensors(config)
    for each, place in places.items():
        tensor, name, turned = checkpoint.tensors[each], place.names[0], each in transposed
        shape = tuple(tensor.shape)[::-1] if turned else tuple(tensor.shape)
        load = partial(stored_numbers, tensor, place, transposed=turned)
        if name in stored:
            tensors.append(_coded(name, shape, stored[name], load))
        else:
            tensors.append(of_floats(name, shape, _dtype(name, tensor), load))
    fields = {key: field_of(value) for key, value in metadata.items() if value != []}
    return NewFile(architecture.name, fields | _facts(stored), tensors)


def _facts(stored: Mapping[str, str]) -> dict[str, MetadataValue]:
    """Return the metadata of quantization; `rekindle.kinds` has the groups with one scale, by tensor."""
    forms = [ggml_kind(kind) for kind in stored.values()]
    if not forms:
        return {}
    return {
        "general.file_type": field_of(_FILE_TYPES[max(_FILE_TYPES, key=forms.count)]),
        "general.quantization_version": field_of(_VERSION),
        CODES: field_of([f"{name}={kind}" for name, kind in stored.items()]),
    }


def _fields_of(file: GGUFFile) -> Iterator[tuple[str, MetadataValue]]:
    """Yield the metadata of a file with their types, by the gguf library's reader."""
    import gguf

    for key, field in gguf.GGUFReader(file.paths[0]).fields.items():
        if key != "general.architecture" and not key.startswith(_REPLACED):
            value: Any = field.contents()
            if value != []:
                yield key, MetadataValue(value, field.types[-1].name)


def _stored_kinds(places: Mapping[str, AnyPlace], kinds: Mapping[str, str], source: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds of the stored tensors whose rows are rows of the model's matrices with this kind."""
    users: dict[str, list[str]] = {}
    for name, place in places.items():
        for stored in getattr(place, "names", ()):
            users.setdefault(stored, []).append(name)
    for stored, names in users.items():
        kinds_here, homes = {kinds.get(name) for name in names}, [places[name] for name in names]
        if kinds_here == {None}:
            continue
        kind = kinds_here.pop()
        is_own = all(isinstance(home, TensorPlace) and len(home.names) == 1 for home in homes)
        if kinds_here or kind is None or not is_own:
            raise UnsupportedModel(
                f"{source}: the rows of {stored} are not those of one kind of matrices in the model, so it is not "
                "written as GGUF: quantize the model's Hugging Face directory to safetensors instead"
            )
        yield stored, kind


def _coded(name: str, shape: tuple[int, ...], kind: str, load: Callable[[], Tensor]) -> NewTensor:
    """Return a tensor in llama.cpp's blocks of a kind of codes; `load` returns its numbers while they are written."""
    form = ggml_kind(kind)

    def pieces() -> Iterator[Array]:
        return (ggml_blocks(CodeRows.of(piece, kind), name) for piece in row_pieces(load()))

    return NewTensor(name, shape, form, math.prod(shape) // BLOCK * BLOCK_BYTES[form], pieces)


def _copied(file: GGUFFile, name: str) -> NewTensor:
    """Return a tensor as it is in another file."""
    tensor = file.read(name)
    shape = tuple(tensor.shape)
    if not isinstance(tensor, Blocks):
        return of_floats(name, shape, float_dtype(tensor), lambda: tensor)
    data = tensor.data
    return NewTensor(name, shape, tensor.kind.name, math.prod(data.shape), lambda: row_pieces(data))


def _dtype(name: str, tensor: Tensor) -> np.dtype[np.generic]:
    """Return the dtype of a plain tensor: float32 for vectors and positions, which llama.cpp expects."""
    is_matrix = tensor.ndim > 1 and not name.startswith("position_embd")
    return float_dtype(tensor) if is_matrix else np.dtype(np.float32)
