"""Reading GGUF files: opening reads metadata and header, a tensor is read when it is asked for.

The gguf library's own reader makes several numpy arrays of every string, which is a large part of a second where there
are 49,000 tokens and as many merges.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import Any

import numpy as np

from rekindle.errors import CheckpointError, UnsupportedModel
from rekindle.models.checkpoint.gguf.kinds import Kind, kind_of

_MAGIC = b"GGUF"
_UINT32, _UINT64 = Struct("<I"), Struct("<Q")
_STRING, _ARRAY = 8, 9
# The kinds of numbers, by their code.
_NUMBERS = {code: Struct(f"<{form}") for code, form in enumerate("BbHhIif?")} | {
    code: Struct(f"<{form}") for code, form in zip((10, 11, 12), "Qqd", strict=True)
}
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where one tensor is in the file, in bytes, and as what."""

    shape: tuple[int, ...]
    kind: Kind
    begin: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """One mapped file; `shapes` has every tensor in it, slowest axis first."""

    path: Path
    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    _tensors: Mapping[str, _Stored]
    _data: mmap.mmap

    def read(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The tensor, from any thread: a read-only view where it is stored as floats, else dequantized to float32.

        Raises:
            UnsupportedModel: its kind is not known, here or to the gguf library.
        """
        stored = self._tensors[name]
        data = np.frombuffer(self._data, np.uint8, stored.size, stored.begin)
        try:
            return stored.kind.read(data).reshape(stored.shape)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: {name} is {stored.kind.name}, which the gguf library cannot read"
            ) from error


def open_gguf_file(path: Path) -> GGUFFile:
    """Map a file and read its header, and see that every tensor is inside the file.

    Raises:
        CheckpointError: the file is truncated or corrupt, or newer than the installed library.
        UnsupportedModel: it is in big-endian order, or of a version that is not known.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = _Header(data)
        version = header.begin()
        if not version & 0xFFFF:
            raise UnsupportedModel(f"{path}: big-endian GGUF files are not supported")
        if version not in (2, 3):
            raise UnsupportedModel(f"{path}: GGUF version {version} is not supported, only 2 and 3")
        metadata, tensors = header.contents()
    except (ValueError, LookupError, TypeError, ArithmeticError, struct_error) as error:
        raise CheckpointError(
            f"{path}: it cannot be read ({error}); it is truncated or corrupt: fetch it again, or newer than the "
            "installed gguf library: upgrade gguf"
        ) from error
    return GGUFFile(path, metadata, {name: stored.shape for name, stored in tensors.items()}, tensors, data)


class _Header:
    """Walks from a file's begin to its tensors; past the file's end, struct's error or ValueError is raised."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._place = 0

    def begin(self) -> int:
        """The version."""
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"it is not a GGUF file, which would begin with {_MAGIC!r}")
        self._place = len(_MAGIC)
        version: int = self._number(_UINT32)
        return version

    def contents(self) -> tuple[dict[str, Any], dict[str, _Stored]]:
        """What follows the version: metadata, and the tensors."""
        num_tensors, num_keys = self._number(_UINT64), self._number(_UINT64)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise ValueError(f"the key {key!r} is there twice")
            metadata[key] = self._value(self._number(_UINT32))
        places = {}
        for _ in range(num_tensors):
            name = self._string()
            if name in places:
                raise ValueError(f"the tensor {name!r} is there twice")
            places[name] = self._tensor()
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"general.alignment is {alignment!r}")
        begin = -(-self._place // alignment) * alignment
        return metadata, {name: self._stored(name, begin, *place) for name, place in places.items()}

    def _stored(self, name: str, begin: int, shape: tuple[int, ...], code: int, offset: int) -> _Stored:
        kind = kind_of(code)
        if shape[-1] % kind.numbers:
            raise ValueError(f"{name} has rows of {shape[-1]} numbers, which are no whole blocks of {kind.numbers}")
        stored = _Stored(shape, kind, begin + offset, math.prod(shape) // kind.numbers * kind.size)
        if stored.begin + stored.size > len(self._data):
            raise ValueError(f"{name} should end at byte {stored.begin + stored.size} of {len(self._data)}")
        return stored

    def _tensor(self) -> tuple[tuple[int, ...], int, int]:
        """Shape, kind, and place among the tensors."""
        dimensions = self._number(_UINT32)
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"a tensor should have {dimensions} dimensions")
        shape = tuple(reversed([self._number(_UINT64) for _ in range(dimensions)]))
        return shape, self._number(_UINT32), self._number(_UINT64)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        return self._array() if kind == _ARRAY else self._number(_NUMBERS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._number(_UINT32), self._number(_UINT64)
        if count > len(self._data) - self._place:
            raise ValueError(f"an array should have {count} elements")
        if kind == _STRING:
            return self._strings(count)
        form = _NUMBERS[kind]
        values: list[Any] = np.frombuffer(self._data, np.dtype(form.format), count, self._place).tolist()
        self._place += count * form.size
        return values

    def _number(self, form: Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._place)
        self._place += form.size
        return value

    def _string(self) -> str:
        (text,) = self._strings(1)
        return text

    def _strings(self, count: int) -> list[str]:
        """Read strings. A loop that calls nothing of ours: there are a hundred thousand."""
        data, place, unpack = self._data, self._place, _UINT64.unpack_from
        texts = []
        for _ in range(count):
            (size,) = unpack(data, place)
            begin, place = place + 8, place + 8 + size
            texts.append(data[begin:place].decode())
        if place > len(data):
            raise ValueError(f"a text should end at byte {place} of {len(data)}")
        self._place = place
        return texts
