"""Entries of a store on disk: directories of arrays that Orbax wrote, each sealed by a list of all that is in it.

An entry is written under a temporary name and never changed after it has its own. What is read was first found to be
this user's alone, and then, byte for byte, what was written.
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
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.concurrency.threads import ending, storing
from rekindle.errors import UnsafeStorage
from rekindle.store.directory import atomic_write

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Header = dict[str, Any]
"""What a store says about an entry; JSON."""

SEAL: Final = "seal.json"
ARRAYS: Final = "arrays"
WRITING: Final = ".writing-"
REMOVING: Final = ".removing-"
SPARE_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 64 << 10
"""Of files from this length on, a seal may know the length alone."""
LEFT_BEHIND_SECONDS: Final = 3600
"""A temporary directory this old has lost its process."""


class Damaged(Exception):
    """An entry is not as it was written. For the store, which drops it: a user only sees the warning."""


def write_temporary(
    store: Path, header: Header, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], *, singly: bool = False
) -> Path:
    """A whole, sealed and flushed entry that has no name yet.

    Not for an event loop's thread: Orbax would patch the loop.

    Args:
        store: the directory of the store.
        header: see `Header`.
        arrays: by name.
        singly: for arrays that are read one by one. They are not compressed, and the seal knows large files by their
            length alone: the store checks each array against a digest of its own.

    Returns:
        The entry, inside of `store`; the caller gives it its name, or removes it.

    Raises:
        OSError: there is no room for it, or it cannot be written; also whatever Orbax raises then.
    """
    with storing:
        if ending():
            raise OSError("the process ends")
        return _written(store, header, arrays, singly)


def _written(store: Path, header: Header, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], singly: bool) -> Path:
    _require_room(store, sum(array.nbytes for array in arrays.values()))
    temporary = Path(tempfile.mkdtemp(dir=store, prefix=WRITING))
    try:
        _save(temporary / ARRAYS, arrays, compressed=not singly)
        files = _closed(temporary)
        seals = {name: _fingerprint(path, not singly or _size(path) < LARGE_BYTES) for name, path in files.items()}
        body = json.dumps({"header": header, "files": seals})
        with atomic_write(temporary / SEAL) as file:
            file.write(f"{_digest(body.encode())}\n{body}".encode())
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def publish(temporary: Path, entry: Path) -> None:
    """Give an entry its name; where another process was faster, its entry stays."""
    try:
        temporary.rename(entry)
    except OSError:
        if not entry.exists():
            raise
        shutil.rmtree(temporary, ignore_errors=True)
    _sync(entry.parent)


def verified(entry: Path) -> Header:
    """The header of an entry whose every byte is as written, but for large files of arrays that are read one by one.

    Raises:
        FileNotFoundError: there is no such entry.
        UnsafeStorage: it belongs to another user, or is writable by others.
        Damaged: it is something else than what was written.
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
    """The header alone, which is as it was written; the rest may not be.

    Raises:
        As `verified`.
    """
    _private_files(entry)
    return _unsealed(entry)[0]


def arrays_of(entry: Path, names: Sequence[str] | None = None) -> Arrays:
    """All arrays of a verified entry, or some of them. Not for an event loop's thread: Orbax would patch the loop."""
    import orbax.checkpoint as ocp

    wanted = ocp.args.PyTreeRestore()
    if names is not None:
        kinds = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=kinds, partial_restore=True)
    with ocp.PyTreeCheckpointer() as checkpointer:
        arrays: Arrays = checkpointer.restore((entry / ARRAYS).absolute(), args=wanted)
    return arrays


def remove(entry: Path) -> None:
    """Take an entry away at once, and then delete it; nothing happens where it cannot be taken away or is gone."""
    gone = entry.with_name(f"{REMOVING}{entry.name}-{os.urandom(4).hex()}")
    try:
        entry.rename(gone)
    except OSError:
        return
    if gone.is_symlink() or not gone.is_dir():
        gone.unlink(missing_ok=True)
    else:
        shutil.rmtree(gone, ignore_errors=True)


def remove_left_behind(store: Path, older_than: float = LEFT_BEHIND_SECONDS) -> None:
    """Delete what processes that were killed while they wrote or removed an entry left behind."""
    for child in store.iterdir():
        if child.name.startswith((WRITING, REMOVING)):
            try:
                old = child.lstat().st_mtime < time.time() - older_than
            except FileNotFoundError:
                continue
            if old:
                shutil.rmtree(child, ignore_errors=True)


def size_of(entry: Path) -> int:
    """Bytes of all its files; 0 for one that is gone."""
    return sum(_size(path) for path in _below(entry))


def identity(entry: Path) -> tuple[int, int] | None:
    """Another one for each entry that has had this name; None where there is none."""
    try:
        status = entry.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def last_used(entry: Path) -> int:
    """Nanoseconds since the epoch; 0 for an entry that is gone or has no seal."""
    try:
        return (entry / SEAL).stat().st_mtime_ns
    except OSError:
        return 0


def mark_used(entry: Path) -> None:
    """It was used now. In a store that cannot be written to, nobody will want to know."""
    now = time.time_ns()
    try:
        os.utime(entry / SEAL, ns=(now, now))
    except OSError:
        return


def require_private(path: Path) -> None:
    """See that a directory or file is this user's, is no link, and can be written to by nobody else.

    Raises:
        FileNotFoundError: there is nothing.
        UnsafeStorage: it belongs to another user, or is writable by others.
        Damaged: it is neither a directory nor a file.
    """
    status = path.lstat()
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise Damaged(f"{path.name} is neither a directory nor a file")
    if not hasattr(os, "getuid"):  # Windows keeps the user's directories apart by access lists, not by mode bits
        return
    if status.st_uid != os.getuid():
        raise UnsafeStorage(
            f"{path} belongs to user {status.st_uid}, but this process runs as {os.getuid()}, and will load nothing "
            "from it: delete it, or set REKINDLE_CACHE to a directory of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeStorage(
            f"{path} is writable by others (mode {stat.S_IMODE(status.st_mode):04o}), who could plant what they like: "
            f"delete it, or run `chmod -R go-w {path}` if nobody else could have changed it"
        )


def import_orbax() -> None:
    """Import it, which every entry needs and which takes a moment.

    To be done while nobody else does anything: in Python 3.11 an import can fail because another thread parses code,
    as a notebook does before each cell.
    """
    import orbax.checkpoint  # noqa: F401


def _save(path: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], compressed: bool) -> None:
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer(use_compression=compressed) as checkpointer:
        checkpointer.save(path.absolute(), dict(arrays))


def _require_room(store: Path, needed: int) -> None:
    """On a full disk Orbax would write pages of tracebacks to stderr. Compressed, an entry takes much less."""
    if shutil.disk_usage(store).free < needed + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(store))


def _closed(directory: Path) -> dict[str, Path]:
    """The files below, by relative name; all closed to others, whatever the umask is, and flushed."""
    files = {}
    for path in _below(directory):
        if path.is_dir():
            path.chmod(0o700)
        else:
            path.chmod(0o600)
            files[path.relative_to(directory).as_posix()] = path
        _sync(path)
    return files


def _below(directory: Path) -> Iterator[Path]:
    """All directories and files below, links as they are; it minds nothing that another process takes away."""
    for parent, directories, files in os.walk(directory):
        yield from (Path(parent, name) for name in (*directories, *files))


def _private_files(entry: Path) -> dict[str, Path]:
    """The files below, by relative name, after a look at every one of them and every directory."""
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
    except (ValueError, TypeError, KeyError) as error:  # an honest seal, but not one of ours
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


def _sync(path: Path) -> None:
    """Make a file's content, or a directory's names, outlast a power cut, where the system can."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
