"""Reader of GGUF files. Opening reads only metadata and header, and each tensor is read on request.

The gguf library's reader is not used: it creates several numpy arrays for every string, and takes a large part of a
second for a vocabulary of 49,000 tokens with its merges.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import Any, TypeVar

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.gguf.kinds import check_readable, kind_of, multiplied
from rekindle.formats.weight_file import WeightFile
from rekindle_kernels.blocks import Array, Blocks, FileArray, Kind
from rekindle_kernels.quantized import Stack

T = TypeVar("T")

_MAGIC = b"GGUF"
_UINT32, _UINT64 = Struct("<I"), Struct("<Q")
_STRING, _ARRAY = 8, 9
# Number formats in metadata, by type code.
_NUMBERS = {code: Struct(f"<{form}") for code, form in enumerate("BbHhIif?")} | {
    code: Struct(f"<{form}") for code, form in zip((10, 11, 12), "Qqd", strict=True)
}
_MAX_DIMENSIONS = 4
_TOKENS = "tokenizer.ggml.tokens"
"""The first of the long lists in the metadata, behind the numbers of the layers."""
_BYTE = np.dtype(np.uint8)
_FIRST_BYTES, _MOST_BYTES = 16 << 20, 1 << 30
"""Bytes of a file read for its header at first, and at most."""
_BEGINNING_BYTES = 1 << 16
"""Bytes of a file with its architecture and the numbers of its layers, in the order of llama.cpp's writers."""


@dataclass(frozen=True, slots=True)
class _TensorLocation:
    """Position, size (in bytes) and kind of one tensor."""

    shape: tuple[int, ...]
    kind: Kind
    begin: int
    size: int
    file: WeightFile


@dataclass(frozen=True)
class GGUFFile:
    """A file, or all files of a split model.

    Attributes:
        paths: paths of the files.
        metadata: metadata of the first file.
        shapes: shapes of all tensors, slowest axis first.
    """

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    _tensors: Mapping[str, _TensorLocation]

    def read(self, name: str, rows: range | None = None) -> FileArray | Blocks | Stack:
        """Return a tensor, unread; one with a factor for each expert as a stack. Thread-safe.

        Args:
            name: name of the tensor.
            rows: rows to read, along the first axis; None for all.

        Raises:
            UnsupportedModel: neither Rekindle nor the gguf library can read the tensor's kind.
        """
        location = self._tensors[name]
        shape, begin = location.shape, location.begin
        if rows is not None:
            begin += location.size * rows.start // shape[0]
            shape = (len(rows), *shape[1:])
        kind, file, factors = location.kind, location.file, self._factors(name)
        if len(factors) > 1 and rows is None:
            return Stack(tuple(self.read(name, range(expert, expert + 1))[0] for expert in range(shape[0])))
        if len(factors):
            kind = multiplied(kind, factors[0 if rows is None or len(factors) == 1 else rows.start])
        try:  # detect unreadable kinds here, where the tensor's name is known
            check_readable(kind)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.paths[0]}: {name} is {kind.name}, which the gguf library cannot read"
            ) from error
        if kind.numbers == 1:
            return file.array(begin, shape, kind.dequantize(np.zeros(kind.size, np.uint8)).dtype)
        return Blocks(file.array(begin, (*shape[:-1], shape[-1] // kind.numbers * kind.size), _BYTE), kind)

    def _factors(self, name: str) -> Array:
        """Return the numbers beside a tensor of NVFP4 that multiply it: one, one for each expert, or none."""
        beside = f"{name.removesuffix('.weight')}.scale"
        if self._tensors[name].kind.name != "NVFP4" or beside not in self._tensors:
            return np.zeros(0, np.float32)
        return np.asarray(self.read(beside), np.float32).reshape(-1)

    def formats(self) -> tuple[str, ...]:
        """Return the quantized kinds of the tensors, the most frequent first."""
        counts = Counter(tensor.kind.name for tensor in self._tensors.values() if tensor.kind.numbers > 1)
        return tuple(name for name, _ in counts.most_common())

    def join(self, others: Iterable["GGUFFile"]) -> "GGUFFile":
        """Return this file with the tensors of other files.

        Raises:
            CheckpointError: two files contain the same tensor.
        """
        paths, tensors = list(self.paths), dict(self._tensors)
        for other in others:
            if duplicates := tensors.keys() & other._tensors.keys():
                raise CheckpointError(f"{other.paths[0]}: {min(duplicates)} is also in another file. Fetch them again")
            tensors |= other._tensors
            paths += other.paths
        return GGUFFile(tuple(paths), self.metadata, {name: tensor.shape for name, tensor in tensors.items()}, tensors)


def open_gguf_file(path: Path) -> GGUFFile:
    """Open a file, read its header, and check that every tensor is inside the file.

    Raises:
        CheckpointError: the file is truncated or corrupt, or newer than the installed gguf library.
        UnsupportedModel: the file is big-endian, or has an unsupported version.
    """
    with _damage(path):
        metadata, tensors = _read_header(WeightFile(path), _FIRST_BYTES)
    return GGUFFile((path,), metadata, {name: location.shape for name, location in tensors.items()}, tensors)


def read_beginning(path: Path) -> dict[str, Any]:
    """Return the metadata before the tokens, from the first 64 kB.

    Raises:
        CheckpointError, UnsupportedModel: as `open_gguf_file`, as far as the first bytes show it.
    """
    with _damage(path):
        file = WeightFile(path)
        header = _Header(file, file.read(0, min(_BEGINNING_BYTES, file.size)).data)
        _check_version(header.begin(), path)
        return header.beginning()


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise errors of a reader as CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, ArithmeticError, struct_error) as error:
        raise CheckpointError(
            f"{path}: the file cannot be read ({error}). It is truncated or corrupt: fetch it again; or it is newer "
            "than the installed gguf library: upgrade gguf"
        ) from error


def _check_version(version: int, path: Path) -> None:
    if not version & 0xFFFF:
        raise UnsupportedModel(f"{path}: big-endian GGUF files are not supported")
    if version not in (2, 3):
        raise UnsupportedModel(f"{path}: GGUF version {version} is not supported, only 2 and 3")


def _read_header(file: WeightFile, size: int) -> tuple[dict[str, Any], dict[str, _TensorLocation]]:
    """Return the metadata and the tensors, from the first bytes of a file; of four times as many if these end."""
    header = _Header(file, file.read(0, min(size, file.size)).data)
    try:
        _check_version(header.begin(), file.path)
        return header.contents()
    except (ValueError, struct_error):
        if size >= min(file.size, _MOST_BYTES):
            raise
    return _read_header(file, 4 * size)


class _Header:
    """Sequential reader of a header. It raises ValueError or `struct.error` past the end of its bytes."""

    def __init__(self, file: WeightFile, data: memoryview) -> None:
        self._file = file
        self._data = data
        self._place = 0

    def begin(self) -> int:
        """Read the magic number, and return the version."""
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"not a GGUF file, which begins with {_MAGIC!r}")
        self._place = len(_MAGIC)
        version: int = self._number(_UINT32)
        return version

    def contents(self) -> tuple[dict[str, Any], dict[str, _TensorLocation]]:
        """Read the rest of the header: the metadata, and the tensors by name."""
        num_tensors, num_keys = self._number(_UINT64), self._number(_UINT64)
        metadata = self._read_named("key", num_keys, self._value)
        places = self._read_named("tensor", num_tensors, self._tensor)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"general.alignment must be a positive integer, got {alignment!r}")
        begin = -(-self._place // alignment) * alignment
        return metadata, {name: self._location(name, begin, *place) for name, place in places.items()}

    def beginning(self) -> dict[str, Any]:
        """Read the metadata up to the tokens, or as far as there are bytes."""
        _, num_keys, metadata = self._number(_UINT64), self._number(_UINT64), dict[str, Any]()
        with suppress(ValueError, struct_error):
            for _ in range(num_keys):
                if (name := self._string()) == _TOKENS:
                    break
                metadata[name] = self._value()
        return metadata

    def _read_named(self, noun: str, count: int, read_item: Callable[[], T]) -> dict[str, T]:
        items: dict[str, T] = {}
        for _ in range(count):
            name = self._string()
            if name in items:
                raise ValueError(f"the {noun} {name!r} occurs twice")
            items[name] = read_item()
        return items

    def _location(self, name: str, begin: int, shape: tuple[int, ...], code: int, offset: int) -> _TensorLocation:
        kind = kind_of(code)
        if shape[-1] % kind.numbers:
            raise ValueError(f"{name} has rows of {shape[-1]} numbers, not a multiple of blocks of {kind.numbers}")
        location = _TensorLocation(
            shape, kind, begin + offset, math.prod(shape) // kind.numbers * kind.size, self._file
        )
        if location.begin + location.size > self._file.size:
            raise ValueError(
                f"{name} ends at byte {location.begin + location.size}, the file at byte {self._file.size}"
            )
        return location

    def _tensor(self) -> tuple[tuple[int, ...], int, int]:
        """Read a tensor's shape, the code of its kind, and its byte offset in the tensor data."""
        dimensions = self._number(_UINT32)
        if not 0 < dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"a tensor must have 1 to {_MAX_DIMENSIONS} dimensions, got {dimensions}")
        shape = tuple(reversed([self._number(_UINT64) for _ in range(dimensions)]))
        return shape, self._number(_UINT32), self._number(_UINT64)

    def _value(self) -> Any:
        kind = self._number(_UINT32)
        if kind == _STRING:
            return self._string()
        return self._array() if kind == _ARRAY else self._number(_NUMBERS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._number(_UINT32), self._number(_UINT64)
        if count > len(self._data) - self._place:
            raise ValueError(f"an array has {count} elements, more than there are bytes")
        if kind == _STRING:
            return self._strings(count)
        number_format = _NUMBERS[kind]
        values: list[Any] = np.frombuffer(self._data, np.dtype(number_format.format), count, self._place).tolist()
        self._place += count * number_format.size
        return values

    def _number(self, number_format: Struct) -> Any:
        (value,) = number_format.unpack_from(self._data, self._place)
        self._place += number_format.size
        return value

    def _string(self) -> str:
        (text,) = self._strings(1)
        return text

    def _strings(self, count: int) -> list[str]:
        """Read strings. The loop inlines everything, because there are a hundred thousand strings."""
        data, place, unpack = self._data, self._place, _UINT64.unpack_from
        texts = []
        for _ in range(count):
            (size,) = unpack(data, place)
            begin, place = place + 8, place + 8 + size
            texts.append(str(data[begin:place], "utf-8"))
        if place > len(data):
            raise ValueError(f"a text ends at byte {place}, the file at byte {len(data)}")
        self._place = place
        return texts
