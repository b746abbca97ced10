"""Embeddings of images on disk, for prompts with an image of an earlier session."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rekindle.core.store import entries as disk
from rekindle.core.store.catalog import SingleCatalog
from rekindle.core.store.directory import make_private
from rekindle.core.store.snapshot_key import SnapshotKey

EMBEDDINGS = "embeddings"
"""Name of the array in an entry."""


class PictureCatalog(SingleCatalog):
    """Catalog of the embeddings of images of all models."""

    def __init__(self, directory: Path):
        super().__init__(directory, "embeddings of images")

    def check(self, path: Path) -> None:
        """See `Catalog.check`."""
        disk.verify(path)
        disk.arrays_of(path, [EMBEDDINGS])


class PictureStore:
    """Embeddings of images by one tower. Any number of threads and processes may use a store concurrently.

    Embeddings are returned bit for bit as stored, or not at all: damaged entries are dropped with a warning. Methods
    raise `UnsafeStorage` if the directory or an entry belongs to another user, or is writable by others. Do not call
    methods on an event loop's thread.

    Args:
        directory: a directory for embeddings alone; created with mode 0700 for the first image.
        key: the key of the tower.
        model: display name of the model.
        capacity_bytes: limit on the embeddings of all models; the least recently used are evicted.
    """

    def __init__(self, directory: Path, key: SnapshotKey, model: str, capacity_bytes: int):
        self._catalog = PictureCatalog(directory)
        self._key, self._model, self._capacity = key, model, capacity_bytes

    def read(self, digest: bytes) -> disk.Array | None:
        """Return the embeddings of an image, (tokens, hidden) float32; None for an image without an entry."""
        path = self._path_of(digest)

        def load() -> disk.Array:
            disk.verify(path)
            array = disk.arrays_of(path, [EMBEDDINGS])[EMBEDDINGS]
            disk.mark_used(path)
            return array

        return self._catalog.read(path, load) if path.is_dir() else None

    def write(self, digest: bytes, embeddings: disk.Array) -> None:
        """Store the embeddings of an image. Only the first failure causes a warning."""
        path = self._path_of(digest)
        if embeddings.nbytes > self._capacity or path.is_dir():
            return
        header = {"parts": self._key.parts(), "model": self._model, "created": time.time()}
        self._catalog.write(lambda: self._write(path, header, {EMBEDDINGS: np.asarray(embeddings)}))
        self._catalog.evict(self._capacity, keep=[path])

    def _write(self, path: Path, header: disk.Header, arrays: Mapping[str, disk.Array]) -> None:
        make_private(self._catalog.directory)
        disk.remove_leftovers(self._catalog.directory)
        with disk.new_entry(self._catalog.directory, header, arrays) as temporary:
            disk.publish(temporary, path)

    def _path_of(self, digest: bytes) -> Path:
        return self._catalog.directory / hashlib.sha256(bytes.fromhex(self._key.digest) + digest).hexdigest()
