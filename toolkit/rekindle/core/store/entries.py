"""Entries of a store on disk: directories of files, such as Orbax arrays, each with a seal of the files' digests.

An entry is written under a temporary name and renamed once it is complete. It never changes afterwards. Before an
entry is read, its files are checked: they must be private to this user and identical to the files as written. Reading
uses tensorstore, Orbax's storage library, because it imports six times as fast as Orbax.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock, current_thread
from typing import Any, Final

import jax
import numpy as np

from rekindle.core.concurrency.collector import collector_paused
from rekindle.core.concurrency.threads import ending, storing
from rekindle.core.store.directory import atomic_write, require_private, sync

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
Header = dict[str, Any]
"""Metadata of an entry, as JSON."""
Identity = tuple[int, int]
"""The inode and its change time: distinguishes an entry from a later one of the same name."""

SEAL: Final = "seal.json"
ARRAYS: Final = "arrays"
FOLLOWER_ARRAYS: Final = "arrays.safetensors"
MAKING: Final = ".making-"
"""Prefix of an empty directory before it is locked."""
WRITING: Final = ".writing-"
REMOVING: Final = ".removing-"
_SAVING: Final = Lock()
SPARE_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 64 << 10
"""For files of at least this size, a seal may hold the length alone."""
CAN_LOCK: Final = os.name == "posix"
LEFTOVER_SECONDS: Final = 3600
"""Age at which a temporary directory counts as abandoned, on platforms without directory locks."""


class Damaged(Exception):
    """Error for an entry changed since it was written. Its store drops the entry with a warning."""


@contextmanager
def new_entry(store: Path, header: Header, arrays: Mapping[str, Array], *, singly: bool = False) -> Iterator[Path]:
    """Write an entry of arrays like `made_entry`.

    Do not call this on an event loop's thread, because Orbax would patch the loop.

    Args:
        singly: whether the arrays are read one by one. They are then stored uncompressed, and the seal holds only the
            length of large files. The store keeps a digest of each array instead.
    """

    def save(temporary: Path) -> Header:
        _save(temporary, arrays, compressed=not singly)
        return header

    with storing:
        if ending():
            raise OSError("the process is shutting down")
        with made_entry(store, sum(array.nbytes for array in arrays.values()), save, singly=singly) as temporary:
            yield temporary


@contextmanager
def made_entry(store: Path, size: int, save: Callable[[Path], Header], *, singly: bool = False) -> Iterator[Path]:
    """Write, seal and flush an entry under a temporary name. Remove it when the block ends, unless it was published.

    Args:
        size: the bytes to have room for.
        save: writes the files into the temporary directory, and returns the header.
        singly: whether the seal holds only the length of large files. The store keeps digests of their parts instead.

    Yields:
        The entry's temporary path inside `store`, for `publish`.

    Raises:
        OSError: the disk is full, or the entry cannot be written. `save` may raise other errors.
    """
    _require_room(store, size)
    temporary = Path(tempfile.mkdtemp(dir=store, prefix=MAKING))
    lock = _lock(temporary)
    try:
        temporary = temporary.rename(temporary.with_name(temporary.name.replace(MAKING, WRITING, 1)))
        header = save(temporary)
        files = _make_private(temporary)
        seals = {name: _fingerprint(path, not singly or _size(path) < LARGE_BYTES) for name, path in files.items()}
        body = json.dumps({"header": header, "files": seals})
        with atomic_write(temporary / SEAL) as file:
            file.write(f"{_digest(body.encode())}\n{body}".encode())
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def publish(temporary: Path, entry: Path) -> None:
    """Rename an entry to its final name. An entry published earlier by another process stays."""
    try:
        temporary.rename(entry)
    except OSError:
        if not entry.exists():
            raise
    sync(entry.parent)


def verify(entry: Path) -> Header:
    """Check every byte of an entry, and return its header. Large files of singly read arrays are checked by length.

    Raises:
        OSError: the entry is missing, or contains something other than regular files and directories.
        UnsafeStorage: the entry belongs to another user, or is writable by others.
        Damaged: the entry is not as it was written.
    """
    files = _private_files(entry)
    header, seals = _read_seal(entry)
    files.pop(SEAL)
    if files.keys() != seals.keys():
        raise Damaged(f"it holds {sorted(files)} instead of {sorted(seals)}")
    for name, expected in seals.items():
        if _fingerprint(files[name], with_digest=len(expected) > 1) != expected:
            raise Damaged(f"{name} is not as it was written")
    return header


def header_of(entry: Path) -> Header:
    """Check an entry's seal only, and return its header. Raise the errors of `verify`; other files may be damaged."""
    _private_files(entry)
    return _read_seal(entry)[0]


def arrays_of(entry: Path, names: Sequence[str]) -> Arrays:
    """Read arrays of a verified entry by name."""
    if (entry / FOLLOWER_ARRAYS).exists():
        from safetensors import safe_open

        with safe_open(entry / FOLLOWER_ARRAYS, "np") as file:
            return {name: file.get_tensor(name) for name in names}
    import tensorstore

    context = tensorstore.Context()  # shared, so common metadata is read once
    folder = {"driver": "file", "path": f"{(entry / ARRAYS).absolute().as_posix()}/"}

    def open_array(name: str) -> Any:
        place = {"driver": "ocdbt", "base": folder, "path": f"{name}/"}
        return tensorstore.open({"driver": "zarr", "kvstore": place}, open=True, read=True, context=context)

    reads = [future.result().read() for future in [open_array(name) for name in names]]
    return {name: pending.result() for name, pending in zip(names, reads, strict=True)}


def remove(entry: Path) -> None:
    """Delete an entry atomically: rename it first, then remove its files. Do nothing if it cannot be renamed."""
    target = entry.with_name(f"{REMOVING}{entry.name}-{os.urandom(4).hex()}")
    try:
        entry.rename(target)
    except OSError:
        return
    if target.is_symlink() or not target.is_dir():
        target.unlink(missing_ok=True)
    else:
        shutil.rmtree(target, ignore_errors=True)


def remove_leftovers(store: Path, *, include_active: bool = False) -> None:
    """Delete temporary directories of processes killed while they wrote or removed an entry.

    Args:
        include_active: whether to delete entries still being written, too. Their writers then fail.
    """
    for child in temporary_entries(store):
        if include_active or _is_leftover(child):
            shutil.rmtree(child, ignore_errors=True)


def temporary_entries(store: Path) -> list[Path]:
    """Return the directories of entries being written or removed, including leftovers of killed processes."""
    return [child for child in store.iterdir() if child.name.startswith((MAKING, WRITING, REMOVING))]


def _is_leftover(temporary: Path) -> bool:
    try:
        if not CAN_LOCK or temporary.name.startswith(MAKING):
            return temporary.lstat().st_mtime < time.time() - LEFTOVER_SECONDS
        lock = _lock(temporary)
    except OSError:  # it is gone, or belongs to another user
        return False
    if lock is None:
        return False
    os.close(lock)
    return True


def _lock(directory: Path) -> int | None:
    """Lock a directory until its descriptor is closed or the process dies. Return None if another process holds it."""
    if not CAN_LOCK:
        return None
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # already locked, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def size_of(directory: Path) -> int:
    """Return the total bytes of all files below a directory; 0 if it does not exist."""
    return sum(_size(path) for path in _walk(directory))


def bytes_of(entry: Path) -> int:
    """Return the bytes of an entry on disk; 0 if it does not exist. Entries never change, so the size is cached."""
    return _bytes_of(entry, identity(entry))


@lru_cache(maxsize=1 << 16)
def _bytes_of(entry: Path, _: Identity | None) -> int:
    return size_of(entry)


def identity(entry: Path) -> Identity | None:
    """Return the identity of the entry at a path, or None if there is no entry."""
    try:
        status = entry.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def last_used(entry: Path) -> int:
    """Return the time of an entry's last use, in nanoseconds since the epoch; 0 if it is gone or has no seal."""
    try:
        return (entry / SEAL).stat().st_mtime_ns
    except OSError:
        return 0


def mark_used(entry: Path) -> None:
    """Set an entry's last use to now. Do nothing in a read-only store, because nothing is evicted there."""
    now = time.time_ns()
    try:
        os.utime(entry / SEAL, ns=(now, now))
    except OSError:
        return


def _save(entry: Path, arrays: Mapping[str, Array], compressed: bool) -> None:
    if jax.process_index():  # Orbax writes host arrays only in the first process
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, entry / FOLLOWER_ARRAYS)
        return
    with _root_logger_kept(), _thread_kept(), _checkpointer(compressed) as checkpointer:
        checkpointer.save((entry / ARRAYS).absolute(), dict(arrays))


@contextmanager
def _thread_kept() -> Iterator[None]:
    """Put back the attributes `loop` and `main_task` of the running thread.

    Before 0.12.8, Orbax sets and deletes them. A worker of AnyIO, which has a `loop` of its own, then ends without a
    result.
    """
    attributes = vars(current_thread())
    former: dict[str, Any] = {name: attributes[name] for name in ("loop", "main_task") if name in attributes}
    try:
        yield
    finally:
        attributes.update(former)


@contextmanager
def _root_logger_kept() -> Iterator[None]:
    """Keep absl, by which Orbax logs, from giving the root logger a handler: it has Python's last resort meanwhile.

    So warnings are written as without any handler. One save runs at a time.
    """
    with _SAVING:
        handler = None if logging.root.handlers else logging.lastResort
        if handler is None:
            yield
            return
        logging.root.addHandler(handler)
        try:
            yield
        finally:
            logging.root.removeHandler(handler)


def _checkpointer(compressed: bool) -> Any:
    """Return an Orbax checkpointer for this process alone, without the barriers of `jax.distributed`.

    The first call imports Orbax, which is slow. Parsing a notebook cell during the import fails in early versions of
    Python 3.11 if the garbage collector runs, so the collector is paused.
    """
    with collector_paused():
        import orbax.checkpoint as ocp

    form = {"use_ocdbt": True, "use_zarr3": False, "use_compression": compressed}
    if jax.process_count() == 1:
        return ocp.PyTreeCheckpointer(**form)
    index = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=index, active_processes={index})
    handler = ocp.PyTreeCheckpointHandler(**form, multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _require_room(store: Path, required_bytes: int) -> None:
    """Check the free disk space, because Orbax prints long tracebacks on a full disk. Compression is not considered."""
    if shutil.disk_usage(store).free < required_bytes + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(store))


def _make_private(directory: Path) -> dict[str, Path]:
    """Remove all access by others from the files below, flush them, and return them by relative name."""
    files = {}
    for path in _walk(directory):
        if path.is_dir():
            path.chmod(0o700)
        else:
            path.chmod(0o600)
            files[path.relative_to(directory).as_posix()] = path
        sync(path)
    return files


def _walk(directory: Path) -> Iterator[Path]:
    """Yield all directories and files below, without following links; files removed concurrently are skipped."""
    for parent, directories, files in os.walk(directory):
        yield from (Path(parent, name) for name in (*directories, *files))


def _private_files(entry: Path) -> dict[str, Path]:
    """Check the privacy of all files and directories of an entry, and return the files by relative name."""
    require_private(entry)
    files = {}
    for path in _walk(entry):
        require_private(path)
        if not path.is_dir():
            files[path.relative_to(entry).as_posix()] = path
    if SEAL not in files:
        raise Damaged(f"it has no {SEAL}")
    return files


def _read_seal(entry: Path) -> tuple[Header, dict[str, list[int | str]]]:
    digest, _, body = (entry / SEAL).read_bytes().partition(b"\n")
    if digest != _digest(body).encode():
        raise Damaged(f"{SEAL} is not as it was written")
    try:
        seal = json.loads(body)
        return seal["header"], seal["files"]
    except (ValueError, TypeError, KeyError) as error:  # the digest matches, but the format is unknown
        raise Damaged(f"{SEAL} has an unknown form") from error


def _fingerprint(path: Path, with_digest: bool) -> list[int | str]:
    if not with_digest:
        return [_size(path)]
    content = path.read_bytes()
    return [len(content), _digest(content)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
