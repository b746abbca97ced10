"""Entries of a store on disk: directories of arrays that Orbax wrote, each sealed by a list of all that is in it.

An entry is written under a temporary name, and never changes once it has its own. Before an entry is read, its files
are checked to be this user's alone and to be, byte for byte, as they were written. It is read with tensorstore, which
Orbax stores arrays with and which is imported in a sixth of the time that Orbax takes.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from rekindle.core.concurrency.collector import collector_paused
from rekindle.core.concurrency.threads import ending, storing
from rekindle.core.store.directory import atomic_write, require_private, sync

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
Header = dict[str, Any]
"""What a store says about an entry, as JSON."""
Identity = tuple[int, int]
"""The inode of an entry, and when that last changed."""

SEAL: Final = "seal.json"
ARRAYS: Final = "arrays"
OF_A_FOLLOWER: Final = "arrays.safetensors"
MAKING: Final = ".making-"
"""How the name of a directory begins that is not locked yet; it is empty."""
WRITING: Final = ".writing-"
REMOVING: Final = ".removing-"
SPARE_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 64 << 10
"""A seal may hold the length alone of files that are at least this long."""
CAN_LOCK: Final = os.name == "posix"
LEFT_BEHIND_SECONDS: Final = 3600
"""Where directories cannot be locked, one of this age was left behind by a process that was killed."""


class Damaged(Exception):
    """An entry is not as it was written. The store that reads it drops it with a warning."""


@contextmanager
def written(store: Path, header: Header, arrays: Mapping[str, Array], *, singly: bool = False) -> Iterator[Path]:
    """Write, seal and flush an entry without a name; remove it at the end of the block if it was not published.

    Do not call this on an event loop's thread, because Orbax would patch the loop.

    Args:
        singly: whether the arrays are read one by one. Then they are not compressed, and the seal holds the length
            alone of large files, because the store checks each array against a digest of its own.

    Yields:
        the entry's path inside of `store`, for `publish`.

    Raises:
        OSError: there is no room for it, or it cannot be written. Orbax may raise other errors then.
    """
    with storing:
        if ending():
            raise OSError("the process ends")
        _require_room(store, sum(array.nbytes for array in arrays.values()))
        temporary = Path(tempfile.mkdtemp(dir=store, prefix=MAKING))
        lock = _locked(temporary)
        try:
            temporary = temporary.rename(temporary.with_name(temporary.name.replace(MAKING, WRITING, 1)))
            _save(temporary, arrays, compressed=not singly)
            files = _closed(temporary)
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
    """Give an entry its name. If another process was faster, that process's entry stays."""
    try:
        temporary.rename(entry)
    except OSError:
        if not entry.exists():
            raise
    sync(entry.parent)


def verified(entry: Path) -> Header:
    """Check every byte of an entry, but for large files of arrays that are read one by one, and return its header.

    Raises:
        OSError: the entry is gone, or holds something else than files and directories.
        UnsafeStorage: it belongs to another user, or is writable by others.
        Damaged: it is not as it was written.
    """
    found = _private_files(entry)
    header, files = _unsealed(entry)
    found.pop(SEAL)
    if found.keys() != files.keys():
        raise Damaged(f"it holds {sorted(found)} instead of {sorted(files)}")
    for name, expected in files.items():
        if _fingerprint(found[name], digested=len(expected) > 1) != expected:
            raise Damaged(f"{name} is not as it was written")
    return header


def header_of(entry: Path) -> Header:
    """Check an entry's seal, and return its header, or raise an error as `verified` does. The rest may be damaged."""
    _private_files(entry)
    return _unsealed(entry)[0]


def arrays_of(entry: Path, names: Sequence[str]) -> Arrays:
    """Read the arrays of a verified entry that have the given names."""
    if (entry / OF_A_FOLLOWER).exists():
        from safetensors import safe_open

        with safe_open(entry / OF_A_FOLLOWER, "np") as file:
            return {name: file.get_tensor(name) for name in names}
    import tensorstore

    context = tensorstore.Context()  # in which what all arrays have in common is read once
    folder = {"driver": "file", "path": f"{(entry / ARRAYS).absolute().as_posix()}/"}

    def opened(name: str) -> Any:
        place = {"driver": "ocdbt", "base": folder, "path": f"{name}/"}
        return tensorstore.open({"driver": "zarr", "kvstore": place}, open=True, read=True, context=context)

    reading = [opening.result().read() for opening in [opened(name) for name in names]]
    return {name: read.result() for name, read in zip(names, reading, strict=True)}


def remove(entry: Path) -> None:
    """Rename an entry, so that it is gone at once, and then delete it. Do nothing if it cannot be renamed."""
    gone = entry.with_name(f"{REMOVING}{entry.name}-{os.urandom(4).hex()}")
    try:
        entry.rename(gone)
    except OSError:
        return
    if gone.is_symlink() or not gone.is_dir():
        gone.unlink(missing_ok=True)
    else:
        shutil.rmtree(gone, ignore_errors=True)


def remove_left_behind(store: Path, *, written_now: bool = False) -> None:
    """Delete what was left behind by processes that were killed while they wrote or removed an entry.

    Args:
        written_now: whether to delete also what a process is writing now, which then fails to write it.
    """
    for child in temporary_in(store):
        if written_now or _is_left_behind(child):
            shutil.rmtree(child, ignore_errors=True)


def temporary_in(store: Path) -> list[Path]:
    """Return the directories of entries that are being written or removed, or were left behind by killed processes."""
    return [child for child in store.iterdir() if child.name.startswith((MAKING, WRITING, REMOVING))]


def _is_left_behind(temporary: Path) -> bool:
    try:
        if not CAN_LOCK or temporary.name.startswith(MAKING):
            return temporary.lstat().st_mtime < time.time() - LEFT_BEHIND_SECONDS
        lock = _locked(temporary)
    except OSError:  # it is gone, or another user's
        return False
    if lock is None:
        return False
    os.close(lock)
    return True


def _locked(directory: Path) -> int | None:
    """Lock a directory until its descriptor is closed, or the process is killed. Return None if another one has it."""
    if not CAN_LOCK:
        return None
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is locked, or this file system locks nothing
        os.close(descriptor)
        return None
    return descriptor


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory; 0 if it is gone."""
    return sum(_size(path) for path in _below(directory))


def bytes_of(entry: Path) -> int:
    """Return the bytes of an entry on disk; 0 if it is gone. Its files never change, so they are measured once."""
    return _bytes_of(entry, identity(entry))


@lru_cache(maxsize=1 << 16)
def _bytes_of(entry: Path, _: Identity | None) -> int:
    return size_of(entry)


def identity(entry: Path) -> Identity | None:
    """Return what tells an entry from all others that had the same name; None if there is none."""
    try:
        status = entry.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def last_used(entry: Path) -> int:
    """Return when an entry was last used, in nanoseconds since the epoch; 0 if it is gone or has no seal."""
    try:
        return (entry / SEAL).stat().st_mtime_ns
    except OSError:
        return 0


def mark_used(entry: Path) -> None:
    """Note that an entry is used now. Do nothing if the store cannot be written to: nothing is evicted there."""
    now = time.time_ns()
    try:
        os.utime(entry / SEAL, ns=(now, now))
    except OSError:
        return


def _save(entry: Path, arrays: Mapping[str, Array], compressed: bool) -> None:
    if jax.process_index():  # Orbax leaves arrays of the host to the first process
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, entry / OF_A_FOLLOWER)
        return
    with _checkpointer(compressed) as checkpointer:
        checkpointer.save((entry / ARRAYS).absolute(), dict(arrays))


def _checkpointer(compressed: bool) -> Any:
    """Return Orbax's checkpointer for this process alone, which waits for no others of `jax.distributed`.

    The first call imports Orbax, which takes a moment. A notebook may parse a cell meanwhile, which fails in early
    versions of Python 3.11 if the garbage collector runs then.
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


def _require_room(store: Path, needed: int) -> None:
    """Check for room ahead of Orbax, which would write pages of tracebacks to stderr. Compressed entries need less."""
    if shutil.disk_usage(store).free < needed + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(store))


def _closed(directory: Path) -> dict[str, Path]:
    """Close all files below to others, whatever the umask is, flush them, and return them by relative name."""
    files = {}
    for path in _below(directory):
        if path.is_dir():
            path.chmod(0o700)
        else:
            path.chmod(0o600)
            files[path.relative_to(directory).as_posix()] = path
        sync(path)
    return files


def _below(directory: Path) -> Iterator[Path]:
    """Yield all directories and files below; follow no link, and ignore what another process removes meanwhile."""
    for parent, directories, files in os.walk(directory):
        yield from (Path(parent, name) for name in (*directories, *files))


def _private_files(entry: Path) -> dict[str, Path]:
    """Check that every file and directory of an entry is private, and return the files by relative name."""
    require_private(entry)
    files = {}
    for path in _below(entry):
        require_private(path)
        if not path.is_dir():
            files[path.relative_to(entry).as_posix()] = path
    if SEAL not in files:
        raise Damaged(f"it has no {SEAL}")
    return files


def _unsealed(entry: Path) -> tuple[Header, dict[str, list[int | str]]]:
    digest, _, body = (entry / SEAL).read_bytes().partition(b"\n")
    if digest != _digest(body).encode():
        raise Damaged(f"{SEAL} is not as it was written")
    try:
        seal = json.loads(body)
        return seal["header"], seal["files"]
    except (ValueError, TypeError, KeyError) as error:  # sealed, but not by this module
        raise Damaged(f"{SEAL} is of an unknown form") from error


def _fingerprint(path: Path, digested: bool) -> list[int | str]:
    if not digested:
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
