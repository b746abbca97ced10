"""Converted weights on disk: one file for the arrays of one shard of a model, in the form of its device.

A file is read by position and never mapped: a cut file under a mapping ends the process. Each array has a checksum
(CRC-32, three times as fast as SHA-256 with instructions for it): it is for damage, as nobody else can write here.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Any, BinaryIO, Final, TypeVar

import jax.numpy as jnp
import numpy as np

from rekindle.core.store import entries as disk
from rekindle.core.store.catalog import SingleCatalog
from rekindle.core.store.directory import make_private, require_private
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.validity import sha256_hex

T = TypeVar("T")
Form = tuple[str, tuple[int, ...]]
"""Dtype and shape of an array."""
Pause = Callable[[float], bool]
"""Function called after each step with its seconds; may wait, and returns True to stop."""

DATA: Final = "weights.bin"
STEP_BYTES: Final = 4 << 20
"""Bytes read or written at a time, which stay in a CPU's caches for the checksum."""


class Stopped(Exception):
    """The end of writing before the last array."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One array in a file: the position of its bytes, its form, and its checksum."""

    begin: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    checksum: int


class WeightCatalog(SingleCatalog):
    """Catalog of the converted weights of all models."""

    def __init__(self, directory: Path):
        super().__init__(directory, "converted weights")

    def check(self, path: Path) -> None:
        """See `Catalog.check`."""
        pieces = _pieces(path, disk.verify(path))
        room = bytearray(STEP_BYTES)
        with (path / DATA).open("rb", buffering=0) as file:
            for piece in pieces:
                _read(file, piece, _again(room, piece.size))


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """The arrays of one shard in a file.

    Attributes:
        pieces: the arrays in order.
        infinite: the infinities among the numbers, as counted at the conversion.
    """

    pieces: tuple[Piece, ...]
    infinite: int
    _path: Path

    def read_into(self, index: int, into: disk.Array) -> None:
        """Read one array into another of its form. Thread-safe.

        Raises:
            Damaged: the bytes are not as they were written.
        """
        flat = into.reshape(-1).view(np.uint8).data if into.size else memoryview(b"")
        with self._path.open("rb", buffering=0) as file:
            _read(file, self.pieces[index], (flat[at : at + STEP_BYTES] for at in range(0, len(flat), STEP_BYTES)))


class WeightStore:
    """Converted weights of one model. Any number of threads and processes may use a store concurrently.

    Weights are returned bit for bit as stored, or not at all: damaged entries are dropped with a warning. Methods raise
    `UnsafeStorage` if the directory or an entry belongs to another user, or is writable by others.

    Args:
        directory: a directory for weights alone; created with mode 0700 for the first entry.
        key: the key of the weights of all shards.
        model: display name of the model.
        capacity_bytes: limit on the weights of all models; the least recently used are evicted.
    """

    def __init__(self, directory: Path, key: SnapshotKey, model: str, capacity_bytes: int):
        self._catalog = WeightCatalog(directory)
        self._key, self._model, self._capacity = key, model, capacity_bytes

    def read(self, shard: str, forms: Sequence[Form], load: Callable[[KeptWeights], T]) -> T | None:
        """Return the result of `load` on the weights of a shard; None without them, or if they are damaged.

        Args:
            shard: name of the shard.
            forms: the form of each array, for a comparison.
            load: reads the arrays; may raise what `read_into` raises.
        """
        path = self.path_of(shard)

        def read() -> T:
            require_private(self._catalog.directory)
            header = disk.header_of(path)
            if header.get("parts") != self._key.parts() or header.get("shard") != shard:
                raise disk.Damaged("it has weights of another model")
            pieces = _pieces(path, header)
            if [(piece.dtype, piece.shape) for piece in pieces] != list(forms):
                raise disk.Damaged("its arrays have other forms")
            loaded = load(KeptWeights(pieces, int(header.get("infinite", 0)), path / DATA))
            disk.mark_used(path)
            return loaded

        return self._catalog.read(path, read) if path.is_dir() else None

    def write(
        self, shard: str, forms: Sequence[Form], array: Callable[[int], disk.Array], infinite: int, pause: Pause
    ) -> bool:
        """Store the weights of a shard, unless they are stored or have no room. Only the first failure gives a warning.

        Weights take at most half of what is free on the disk.

        Args:
            array: returns the array of an index, (bytes,) uint8.
            pause: called while files are written.

        Returns:
            Whether the weights are in the store now.

        Raises:
            Others: as `array`.
        """
        path, size = self.path_of(shard), sum(map(_size_of, forms))
        if path.is_dir():
            return True
        if size > self._capacity:
            return False
        header = {"parts": self._key.parts(), "shard": shard, "model": self._model, "infinite": infinite}
        save = partial(_save, forms=forms, array=array, pause=pause, header=header)
        is_kept = bool(self._catalog.write(lambda: self._write(path, size, save)))
        if is_kept:
            self._remove_former(shard)
        return is_kept

    def path_of(self, shard: str) -> Path:
        """Return the path of the entry of a shard, whether it exists or not."""
        return self._catalog.directory / sha256_hex(f"{self._key.digest} {shard}".encode())

    def _write(self, path: Path, size: int, save: Callable[[Path], disk.Header]) -> bool:
        directory = self._catalog.directory
        make_private(directory)
        disk.remove_leftovers(directory)
        self._catalog.evict(self._capacity - size)
        if disk_usage(directory).free < 2 * size:
            return False
        try:
            with disk.made_entry(directory, size, save, singly=True) as temporary:
                disk.publish(temporary, path)
        except Stopped:
            return False
        self._catalog.evict(self._capacity, keep=[path])
        return True

    def _remove_former(self, shard: str) -> None:
        """Remove the weights of the same shard by other sources of Rekindle, such as those before an upgrade."""
        for other in self._catalog.paths():
            with suppress(disk.Damaged, OSError):
                header = disk.header_of(other)
                if header.get("shard") == shard and set(self._key.explain(header.get("parts", {}))) == {"code"}:
                    disk.remove(other)


def form_of(array: Any) -> Form:
    """Return the form of an array, or of its shape and dtype."""
    return np.dtype(array.dtype).name, tuple(map(int, array.shape))


def _size_of(form: Form) -> int:
    dtype, shape = form
    return int(np.prod(shape, dtype=np.int64)) * jnp.dtype(dtype).itemsize


def _save(
    entry: Path, forms: Sequence[Form], array: Callable[[int], disk.Array], pause: Pause, header: Mapping[str, Any]
) -> disk.Header:
    """Write the file of an entry, and return the entry's header."""
    pieces, begin = [], 0
    with (entry / DATA).open("wb", buffering=0) as file:
        for index, form in enumerate(forms):
            checksum = _write(file, array(index), pause)
            pieces.append(asdict(Piece(begin, _size_of(form), *form, checksum)))
            begin += _size_of(form)
    return {**header, "created": time.time(), "pieces": pieces}


def _write(file: BinaryIO, content: disk.Array, pause: Pause) -> int:
    """Write bytes to a file, and return their checksum."""
    view, checksum = content.data if content.size else memoryview(b""), 0
    while view:
        began = time.monotonic()
        step = view[:STEP_BYTES]
        step = step[: file.write(step)]
        checksum = zlib.crc32(step, checksum)
        view = view[len(step) :]
        if pause(time.monotonic() - began):
            raise Stopped
    return checksum


def _pieces(path: Path, header: disk.Header) -> tuple[Piece, ...]:
    """Return the pieces in a header, after a look at the length of their file."""
    try:
        pieces = tuple(Piece(**{**each, "shape": tuple(each["shape"])}) for each in header["pieces"])
        end = sum(_size_of((piece.dtype, piece.shape)) for piece in pieces)
    except (KeyError, TypeError, AttributeError) as error:
        raise disk.Damaged("its header has an unknown form") from error
    if (size := (path / DATA).stat().st_size) != end:
        raise disk.Damaged(f"{DATA} has {size:,} of {end:,} bytes")
    return pieces


def _read(file: BinaryIO, piece: Piece, rooms: Iterator[memoryview]) -> None:
    """Read the bytes of a piece into consecutive rooms, and compare their checksum."""
    file.seek(piece.begin)
    checksum = 0
    for room in rooms:
        rest = room
        while rest:
            count = file.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise disk.Damaged(f"{DATA} was cut while it was read")
            rest = rest[count:]
        checksum = zlib.crc32(room, checksum)
    if checksum != piece.checksum:
        raise disk.Damaged(f"the bytes from {piece.begin:,} on are not as they were written")


def _again(room: bytearray, size: int) -> Iterator[memoryview]:
    """Yield one room again and again, for so many bytes in all."""
    for at in range(0, size, len(room)):
        yield memoryview(room)[: min(len(room), size - at)]
