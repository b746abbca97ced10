"""The executable store: compiled programs on disk, each under the digest of all that makes it valid."""

import pickle
import re
import shutil
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from rekindle.concurrency.threads import ending
from rekindle.device.programs.key import ProgramKey
from rekindle.errors import UnsafeStorage
from rekindle.store import entries as disk
from rekindle.store.validity import Difference

Serialized = Mapping[str, np.ndarray[Any, np.dtype[np.uint8]]]
"""A compiled program as bytes."""

DEFAULT_BYTES: Final = 4 << 30
_DIGEST: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored program.

    Attributes:
        digest: its name.
        parts: of its key, by name.
        bytes: on disk.
        created, used: seconds since the epoch.
    """

    digest: str
    parts: dict[str, str]
    bytes: int
    created: float
    used: float


class ProgramStore:
    """Compiled programs in one directory, for any number of threads and processes at once.

    Loading a program runs what is in its file: the directory and all in it must be this user's alone. What else may
    be wrong with a directory or its entries costs a warning and a compilation, never more. None of the methods is for
    an event loop's thread.

    Args:
        directory: of nothing but this store; made, with mode 0700, when the first program is saved.
        capacity_bytes: bound of all programs; the least recently used leave first, but never one that this process
            loaded or saved.
    """

    def __init__(self, directory: Path, capacity_bytes: int = DEFAULT_BYTES):
        self._directory = directory.resolve()
        self._capacity = capacity_bytes
        self._in_use: set[str] = set()
        self._lock = threading.Lock()
        self._failed = False

    def holds(self, key: ProgramKey) -> bool:
        """Whether there is such a program, which may still prove to be damaged."""
        return disk.identity(self._directory / key.digest) is not None

    def load(self, key: ProgramKey, devices: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        """A stored program, without tracing, lowering or compiling anything.

        Args:
            key: of the program.
            devices: those that it was compiled for, in the same order.

        Returns:
            The program, or None where there is none that can be used; one that is damaged is dropped, with a warning.

        Raises:
            UnsafeStorage: the directory or the entry belongs to another user, or is writable by others.
        """
        entry = self._directory / key.digest
        found = disk.identity(entry)
        if found is None:
            return None
        try:
            disk.require_private(self._directory)
            if disk.verified(entry).get("parts") != key.parts():
                raise disk.Damaged("it is another program")
            arrays = disk.arrays_of(entry)
            program = _deserialize(arrays["program"].tobytes(), arrays["trees"].tobytes(), devices)
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever Orbax, pickle and the device's runtime may say of it
            if disk.identity(entry) == found and not ending():  # or another process removed it under our hands
                self._drop(entry, error)
            return None
        disk.mark_used(entry)
        self._in_use.add(key.digest)
        return program

    def serialize(self, program: jax.stages.Compiled) -> Serialized | None:
        """A program as `save` takes it, before its first call: XLA for CPUs cannot serialize a sort that has run.

        Returns:
            The bytes, or None if they cannot be had. The first time, a warning says why.
        """
        try:
            payload, in_tree, out_tree = serialize(program)
            trees = pickle.dumps((in_tree, out_tree))
        except Exception as error:  # whatever pickle and the device's runtime may say
            self._warn_of_failure(f"{type(error).__name__}: {error}")
            return None
        return {"program": np.frombuffer(payload, np.uint8), "trees": np.frombuffer(trees, np.uint8)}

    def save(self, key: ProgramKey, program: Serialized) -> bool:
        """Store a program, unless it is stored already.

        Returns:
            Whether it is in the store now. The first time that it is not, a warning says why.

        Raises:
            UnsafeStorage: the directory belongs to another user, or is writable by others.
        """
        entry = self._directory / key.digest
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            disk.require_private(self._directory)
            saved = entry.exists() or self._write(entry, key, program)
            if saved:
                self._in_use.add(key.digest)
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever Orbax may say of a full or broken disk
            self._warn_of_failure(f"{type(error).__name__}: {error}")
            return False
        if not saved:
            self._warn_of_failure(f"the programs in use leave no room for it in {self._capacity} bytes")
        return saved

    def entries(self) -> list[Entry]:
        """All stored programs, the most recently used first; without those whose description is damaged.

        Raises:
            UnsafeStorage: the directory or an entry belongs to another user, or is writable by others.
        """
        found = []
        for path in self._paths():
            try:
                header = disk.header_of(path)
            except (disk.Damaged, OSError):
                continue
            used = disk.last_used(path) / 1e9
            found.append(
                Entry(path.name, header.get("parts", {}), disk.size_of(path), header.get("created", 0.0), used)
            )
        return sorted(found, key=lambda entry: -entry.used)

    def verify(self) -> dict[str, str]:
        """What is wrong with each entry that cannot be used, by digest."""
        wrong = {}
        for path in self._paths():
            try:
                disk.verified(path)
            except FileNotFoundError:
                continue
            except (disk.Damaged, UnsafeStorage, OSError) as error:
                wrong[path.name] = str(error)
        return wrong

    def explain(self, key: ProgramKey) -> dict[str, Difference] | None:
        """How a program differs from the stored one that is most like it: empty if it is stored, None if none is."""
        entries = [entry for entry in self.entries() if entry.parts.get("program") == key.program]
        return min((key.explain(entry.parts) for entry in entries), key=len, default=None)

    def prune(self, capacity_bytes: int | None = None) -> int:
        """Remove the least recently used programs until the rest fits, and what killed processes left behind.

        Returns:
            How many bytes are still stored.
        """
        if not self._directory.is_dir():
            return 0
        disk.remove_left_behind(self._directory)
        with self._lock:
            return self._evict(self._capacity if capacity_bytes is None else capacity_bytes)

    def clear(self) -> None:
        """Remove all programs, also those in use: who runs one has it in memory."""
        for path in self._paths():
            disk.remove(path)
        if self._directory.is_dir():
            disk.remove_left_behind(self._directory, older_than=0)

    def _write(self, entry: Path, key: ProgramKey, program: Serialized) -> bool:
        header = {"parts": key.parts(), "created": time.time()}
        disk.remove_left_behind(self._directory)
        temporary = disk.write_temporary(self._directory, header, program)
        try:
            with self._lock:
                in_use = sum(disk.size_of(path) for path in self._paths() if path.name in self._in_use)
                if in_use + disk.size_of(temporary) > self._capacity:
                    return False
                disk.publish(temporary, entry)
                self._in_use.add(key.digest)
                self._evict(self._capacity)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return True

    def _evict(self, allowed: int) -> int:
        """Remove programs until the rest takes at most `allowed` bytes, or all of it is in use; what it takes then."""
        stored = sorted((disk.last_used(path), disk.size_of(path), path) for path in self._paths())
        total = sum(size for _, size, _ in stored)
        for _, size, path in stored:
            if total <= allowed:
                break
            if path.name not in self._in_use:
                disk.remove(path)
                total -= size
        return total

    def _paths(self) -> list[Path]:
        """Of all entries; what else lies in the directory is left alone."""
        try:
            return [path for path in self._directory.iterdir() if _DIGEST.fullmatch(path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _drop(self, entry: Path, error: Exception) -> None:
        disk.remove(entry)
        warnings.warn(
            f"the stored program {entry} cannot be used ({error}): it is dropped and compiled anew",
            RuntimeWarning,
            stacklevel=3,
        )

    def _warn_of_failure(self, reason: str) -> None:
        if self._failed or ending():  # who ends has nobody to tell
            return
        self._failed = True
        warnings.warn(
            f"compiled programs cannot be saved to {self._directory}, and will be compiled again next time: {reason}",
            RuntimeWarning,
            stacklevel=3,
        )


def _deserialize(payload: bytes, trees: bytes, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    in_tree, out_tree = pickle.loads(trees)
    # Unless it is told which devices these are, jax takes all that there are.
    program: jax.stages.Compiled = deserialize_and_load(payload, in_tree, out_tree, execution_devices=list(devices))
    return program
