"""Writing of a GGUF file: the header and the vectors first, then each matrix in pieces."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from rekindle.core.concurrency.progress import Report
from rekindle.core.store.directory import sync
from rekindle.formats.saving.output import check_room
from rekindle.formats.saving.tensors import NewTensor, WrittenBytes, raw_bytes

_ALIGNMENT: Final = 32


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """A value of the metadata.

    Attributes:
        value: a string, a number, a flag, or a list of one of these.
        kind: the name of its type in the gguf library, such as "UINT32"; of its elements for a list.
    """

    value: Any
    kind: str


@dataclass(frozen=True, slots=True)
class NewFile:
    """The content of a GGUF file.

    Attributes:
        architecture: llama.cpp's name of the architecture.
        fields: the metadata by key, without the architecture.
        tensors: the tensors in their order in the file.
    """

    architecture: str
    fields: Mapping[str, MetadataValue]
    tensors: Sequence[NewTensor]


def field_of(value: Any) -> MetadataValue:
    """Return a value as metadata: integers as uint32, or int32 in lists; floats as float32."""
    first = value[0] if isinstance(value, list) else value
    if isinstance(first, bool):
        return MetadataValue(value, "BOOL")
    if isinstance(first, int):
        return MetadataValue(value, "INT32" if isinstance(value, list) else "UINT32")
    return MetadataValue(value, "FLOAT32" if isinstance(first, float) else "STRING")


def write_gguf(path: Path, new: NewFile, stage: str, report: Report, check: Callable[[Path], None]) -> int:
    """Write a file and return its bytes.

    Args:
        path: the path of the file.
        new: its content.
        stage: the name of the reports.
        report: called after each piece.
        check: called with the path before the matrices are written. The file has its size, its header and all vectors.

    Raises:
        StorageError: the disk has no room for the file.
    """
    _write_header(path, new)
    places, begin = [], _aligned(path.stat().st_size)
    for tensor in new.tensors:
        places.append((tensor, begin))
        begin += _aligned(tensor.size)
    check_room(path.parent, begin)
    vectors = [each for each in places if len(each[0].shape) < 2]
    matrices = [each for each in places if len(each[0].shape) >= 2]
    counter = WrittenBytes(stage, sum(tensor.size for tensor in new.tensors), report)
    with path.open("r+b") as file:
        file.truncate(begin)
        for tensor, place in vectors:
            _write_tensor(file, tensor, place, counter)
        file.flush()
        check(path)
        for tensor, place in matrices:
            _write_tensor(file, tensor, place, counter)
    sync(path)
    return begin


def _write_header(path: Path, new: NewFile) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, new.architecture)
    for key, field in new.fields.items():
        kind = gguf.GGUFValueType[field.kind]
        if isinstance(field.value, list):
            writer.add_key_value(key, field.value, gguf.GGUFValueType.ARRAY, kind)
        else:
            writer.add_key_value(key, field.value, kind)
    for tensor in new.tensors:
        form = gguf.GGMLQuantizationType[tensor.form]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.size, form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _write_tensor(file: BinaryIO, tensor: NewTensor, place: int, counter: WrittenBytes) -> None:
    file.seek(place)
    for data in _bytes(tensor):
        file.write(data)
        counter.add(len(data))


def _bytes(tensor: NewTensor) -> Iterator[memoryview]:
    count = 0
    for piece in tensor.pieces():
        data = raw_bytes(piece).data
        count += len(data)
        yield data
    assert count == tensor.size, f"{tensor.name} has {count} bytes, not {tensor.size}"


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
