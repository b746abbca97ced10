"""Make pages with contents derived from their digests, and use the snapshot store from other processes."""

import hashlib
import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rekindle.core.page import NewPage
from rekindle.core.store.index import root_digest
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.snapshot_store import SnapshotStore, WriteOutcome
from rekindle.core.store.snapshots import SnapshotCatalog

SHAPE = (4, 2, 4, 8, 16)
"""The shape of a page: 16 KiB in float32. The seal has no digest of a file with a few pages."""
DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "uint16": np.uint16,
    "int8": np.int8,
}
PAGE_SIZE = 4
PATH_PAGES = 3

Array = np.ndarray[Any, np.dtype[Any]]


def snapshot_key(number: int = 0) -> SnapshotKey:
    """Make a key independent of sources, versions and machines."""
    return SnapshotKey(
        (("model", "config"), ("weights", f"weights {number}"), ("numbers", "float32"), ("page_size", "4"))
    )


def below(parent: str, number: int, namespace: str = "") -> NewPage:
    """Make a page of four equal tokens."""
    key = np.full(PAGE_SIZE, number, "<i4").tobytes()
    return NewPage(hashlib.sha256(bytes.fromhex(parent) + key).hexdigest(), parent, namespace, key)


def path(number: int, length: int = PATH_PAGES, namespace: str = "") -> list[NewPage]:
    """Make a path of pages from the root; no two numbers have a page in common."""
    pages: list[NewPage] = []
    for depth in range(length):
        parent = pages[-1].digest if pages else root_digest(namespace)
        pages.append(below(parent, 1000 * number + depth, namespace))
    return pages


def content(digest: str, dtype: str = "float32") -> Array:
    """Return the content of the page with this digest."""
    data = np.random.default_rng(int(digest, 16)).bytes(int(np.prod(SHAPE)) * np.dtype(DTYPES[dtype]).itemsize)
    return np.frombuffer(data, DTYPES[dtype]).reshape(SHAPE)


def contents(pages: list[NewPage]) -> list[Array]:
    """Return the contents of all these pages."""
    return [content(page.digest) for page in pages]


def same(actual: Array, expected: Array) -> bool:
    """Compare bit by bit: NaN is equal to itself, and zeros of two signs are not equal."""
    return (actual.dtype, actual.shape, actual.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def open_store(directory: Path, capacity_bytes: int = 1 << 30) -> SnapshotStore:
    """Open the store of `snapshot_key(0)`."""
    return SnapshotStore(directory, snapshot_key(), "a model", capacity_bytes)


def write(store: SnapshotStore, pages: list[NewPage]) -> WriteOutcome:
    """Store pages with their contents."""
    return store.write(pages, contents(pages))


def readable(store: SnapshotStore) -> set[str]:
    """Return the digests of all readable pages, after a check of each page and its parent."""
    index = store.index()
    parents = {root_digest(page.namespace) for page in index}
    for page in index:
        assert page.parent in parents, "a page was told before its parent"
        parents.add(page.digest)
    arrays = store.read([page.record for page in index])
    by_digest = {page.digest: array for page, array in zip(index, arrays, strict=True) if array is not None}
    assert all(same(array, content(digest)) for digest, array in by_digest.items()), "a page has another one's content"
    return set(by_digest)


def stored_bytes(directory: Path) -> int:
    """Count the bytes of all snapshots on disk."""
    return sum(entry.bytes for entry in SnapshotCatalog(directory).entries())


def digests(*numbers: int) -> set[str]:
    """Return the digests of the pages of whole paths."""
    return {page.digest for number in numbers for page in path(number)}


def write_until_killed(directory: Path, log: Path, first: int, done: int, seconds: float, capacity_bytes: int) -> None:
    """Write one path after the other, and log each stored one; be killed some seconds after the first `done` ones."""
    store = open_store(directory, capacity_bytes)
    write(store, path(first))
    with log.open("a", buffering=1) as file:
        for number in range(first, first + 10_000):
            if number == first + done:  # the signal's default action ends the process at once, as SIGKILL does
                signal.setitimer(signal.ITIMER_REAL, seconds)
            assert None not in write(store, path(number)).records
            file.write(f"{number}\n")


def share(directory: Path, rounds: int, capacity_bytes: int) -> None:
    """Write, read, use and evict the same few paths as another process, and check that every page is right."""
    warnings.simplefilter("error")
    chance = random.Random(os.getpid())
    store = open_store(directory, capacity_bytes)
    for _ in range(rounds):
        if chance.random() < 0.3:
            store = open_store(directory, capacity_bytes)
        pages = path(chance.randrange(6), length=chance.randint(1, 5))
        records = [record for record in write(store, pages).records if record is not None]
        store.use(records)
        readable(store)
