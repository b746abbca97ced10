"""The executable store: compiled programs on disk, each under the digest of its key."""

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, cast

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from rekindle.core.device.programs.functions import Key
from rekindle.core.device.programs.key import ProgramKey
from rekindle.core.device.programs.lowering import Program, temporary_bytes
from rekindle.core.store import entries as disk
from rekindle.core.store.catalog import DEFAULT_BYTES, SingleCatalog
from rekindle.core.store.directory import make_private, require_private
from rekindle.core.store.validity import Difference

Arrays = Mapping[str, disk.Array]


OBJECT_FILES: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
"""Magic numbers of the object files in XLA's CPU programs, on Linux and on macOS."""
KERNEL: Final = b"\x0a\x06kernel"
"""Bytes of each kernel call in a CPU program: the kind of a `ThunkProto`."""


@dataclass(frozen=True, slots=True)
class Serialized:
    """A compiled program as bytes.

    Attributes:
        arrays: the bytes, by their names in a store entry.
        seconds: the compile time; None if not measured.
        workspace: the temporary bytes of a run; None if unknown.
    """

    arrays: Arrays
    seconds: float | None
    workspace: int | None = None


class ProgramCatalog(SingleCatalog):
    """The stored programs of all models. Nothing is deserialized here."""

    def __init__(self, directory: Path):
        super().__init__(directory, "compiled programs")

    def check(self, path: Path) -> None:
        """See `Catalog`."""
        header = disk.verify(path)
        _require_code(disk.arrays_of(path, ["program"]), header.get("parts", {}).get("platform", ""))


class ProgramStore:
    """The stored programs of one model for some devices. Safe for any number of threads and processes.

    A loaded program runs code from its file. So methods raise `UnsafeStorage` if the directory or an entry belongs to
    another user, or is writable by others. Any other defect costs no more than a warning and a compilation. Call none
    of the methods on an event loop's thread.

    Args:
        directory: a directory of nothing but programs; created with mode 0700 for the first saved program.
        key_of: returns the key of a program; called once for each, by the first thread in need of it.
        devices: the devices of the programs, in the order of compilation.
        capacity_bytes: limit on the programs of all models together; the least recently used are evicted first,
            except programs loaded or saved by this process.
        model: the model's file or directory, for lists of programs. It is no part of a key: models with the same
            config share programs.
    """

    def __init__(
        self,
        directory: Path,
        key_of: Callable[[Key], ProgramKey],
        devices: Sequence[jax.Device],
        capacity_bytes: int = DEFAULT_BYTES,
        model: str = "",
    ):
        self._catalog = ProgramCatalog(directory)
        self._model = model
        self._key_of = cache(key_of)
        self._devices = devices
        self._capacity = capacity_bytes
        self._in_use: set[Path] = set()
        self._lock = threading.Lock()

    def entry(self, key: Key) -> Path:
        """Return the path of a program's entry, whether it exists or not."""
        return self._catalog.directory / self._key_of(key).digest

    def compile_seconds(self, keys: Iterable[Key]) -> dict[Key, float | None]:
        """Return the compile time of each stored program, or None if its entry has none.

        Raises:
            UnsafeStorage: another user could have written one of the entries.
        """
        times: dict[Key, float | None] = {}
        for key in keys:
            with suppress(disk.Damaged, OSError):
                seconds = disk.header_of(self.entry(key)).get("seconds")
                times[key] = seconds if isinstance(seconds, float) else None
        return times

    def workspace(self, key: Key) -> int | None:
        """Return the temporary bytes of a stored program's run; None if it is not stored or its entry has none.

        Raises:
            UnsafeStorage: another user could have written the entry.
        """
        with suppress(disk.Damaged, OSError):
            workspace = disk.header_of(self.entry(key)).get("workspace")
            return workspace if isinstance(workspace, int) else None
        return None

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys of programs absent from the store. A stored program may still turn out to be damaged."""
        return [key for key in keys if disk.identity(self.entry(key)) is None]

    def explain(self, key: Key) -> dict[str, Difference] | None:
        """Return the differences between a program's key and the most similar stored key.

        The result is empty if the program itself is stored, and None if no program of its name is stored.
        """
        target = self._key_of(key)
        stored = [entry.parts for entry in self._catalog.entries() if entry.parts.get("program") == target.program]
        return min(map(target.explain, stored), key=len, default=None)

    def load(self, key: Key) -> Program | None:
        """Load a program, without tracing, lowering or compiling.

        Return None if there is no usable entry; a damaged entry is removed with a warning.
        """
        entry = self.entry(key)
        program = self._catalog.read(entry, partial(self._load, entry, key))
        if program is not None:
            disk.mark_used(entry)
            with self._lock:
                self._in_use.add(entry)
        return program

    def drop(self, key: Key, error: Exception) -> None:
        """Remove a loaded program from the store because it cannot run, and warn."""
        with self._lock:
            self._in_use.discard(self.entry(key))
        self._catalog.drop(self.entry(key), error)

    def serialize(self, program: Program, seconds: float | None = None) -> Serialized | None:
        """Return a compiled program in the form for `save`, or None if it cannot be serialized.

        The first failure warns with its reason. Serialize before the first call: XLA for CPUs cannot serialize a sort
        after it has run.

        Args:
            program: a program from this process's compiler.
            seconds: its compile time, stored for `compile_seconds`.
        """
        arrays = self._catalog.write(partial(_serialize, cast(jax.stages.Compiled, program), self._platform))
        return None if arrays is None else Serialized(arrays, seconds, temporary_bytes(program))

    def save(self, key: Key, program: Serialized) -> bool:
        """Store a program, unless it is stored already.

        Return whether it is in the store now. The first failure warns with its reason.
        """
        saved = self._catalog.write(partial(self._save, key, program))
        if saved is False:
            self._catalog.warn_unsaved(
                f"the programs in use leave no room for another within the limit of {self._capacity} bytes"
            )
        return bool(saved)

    def _load(self, entry: Path, key: Key) -> Program:
        require_private(self._catalog.directory)
        if disk.verify(entry).get("parts") != self._key_of(key).parts():
            raise disk.Damaged("it is another program")
        arrays = disk.arrays_of(entry, ("program", "trees"))
        _require_code(arrays, self._platform)
        return _deserialize(arrays, self._devices)

    @property
    def _platform(self) -> str:
        return str(self._devices[0].platform)

    def _save(self, key: Key, program: Serialized) -> bool:
        """Store a program, unless it is stored already. Return False if the programs in use leave no room for it."""
        directory, entry = self._catalog.directory, self.entry(key)
        make_private(directory)
        if entry.exists():
            with self._lock:
                self._in_use.add(entry)
            return True
        disk.remove_leftovers(directory)
        header = {
            "parts": self._key_of(key).parts(),
            "created": time.time(),
            "model": self._model,
            "seconds": program.seconds,
            "workspace": program.workspace,
        }
        with disk.new_entry(directory, header, program.arrays) as temporary, self._lock:
            if sum(map(disk.bytes_of, self._in_use)) + disk.size_of(temporary) > self._capacity:
                return False
            disk.publish(temporary, entry)
            self._in_use.add(entry)
            self._catalog.evict(self._capacity, keep=self._in_use)
        return True


def _serialize(program: jax.stages.Compiled, platform: str) -> Arrays:
    payload, in_tree, out_tree = serialize(program)
    trees = pickle.dumps((in_tree, out_tree))
    arrays = {"program": np.frombuffer(payload, np.uint8), "trees": np.frombuffer(trees, np.uint8)}
    _require_code(arrays, platform)
    return arrays


def _require_code(arrays: Arrays, platform: str) -> None:
    """Reject a CPU program without the code of its kernels, because its first call would fail.

    XLA leaves out the code of a deserialized program, such as one from JAX's cache, when it serializes it again.

    Raises:
        entries.Damaged: the program has kernels and no code.
    """
    payload = arrays["program"].tobytes()
    if platform == "cpu" and KERNEL in payload and not any(magic in payload for magic in OBJECT_FILES):
        raise disk.Damaged("its kernels have no code: it was serialized by a process that had not compiled it itself")


def _deserialize(arrays: Arrays, devices: Sequence[jax.Device]) -> Program:
    in_tree, out_tree = pickle.loads(arrays["trees"].tobytes())
    # Without execution_devices, jax uses all devices.
    payload = arrays["program"].tobytes()
    program: Program = deserialize_and_load(payload, in_tree, out_tree, execution_devices=list(devices))
    return program
