"""Disks without room or access for writes, for tests of the stores; `small_disk` in conftest.py is a real one."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rekindle.core.store import entries as store_entries

EVERY_PROBLEM = pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS, errno.EACCES])
EVERY_CALL = pytest.mark.parametrize(
    "call", ["shutil.disk_usage", "tempfile.mkdtemp", "os.fsync", "pathlib.Path.rename"]
)
"""All system calls of a store's write of an entry."""


@contextmanager
def failing(call: str, problem: int) -> Iterator[None]:
    """Let every call of a function fail with an error number."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(problem, os.strerror(problem))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, fail)
        yield


@contextmanager
def filling_up() -> Iterator[None]:
    """Let Orbax's writes fail halfway, as on a full disk."""

    def write_half(entry: Path, _: object, compressed: bool) -> None:
        (entry / "half").write_bytes(b"x")
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_entries, "_save", write_half)
        yield
