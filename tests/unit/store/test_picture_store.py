"""Embeddings of images come back bit for bit, for the same tower, or not at all."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from rekindle.core.store.picture_store import PictureCatalog, PictureStore
from rekindle.core.store.snapshot_key import SnapshotKey

KEY = SnapshotKey((("weights", "one"),))
EMBEDDINGS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
DIGEST = b"picture"


def store(directory: Path, key: SnapshotKey = KEY, capacity: int = 1 << 20) -> PictureStore:
    return PictureStore(directory / "images", key, "a model", capacity)


def test_an_image_is_found_by_its_digest_and_its_tower(tmp_path: Path) -> None:
    store(tmp_path).write(DIGEST, EMBEDDINGS)
    entry = store(tmp_path).read(DIGEST)
    assert entry is not None
    assert (entry.dtype, entry.tobytes()) == (EMBEDDINGS.dtype, EMBEDDINGS.tobytes())
    assert store(tmp_path).read(b"another") is None
    assert store(tmp_path, SnapshotKey((("weights", "two"),))).read(DIGEST) is None


def test_a_damaged_entry_is_dropped_and_written_again(tmp_path: Path) -> None:
    store(tmp_path).write(DIGEST, EMBEDDINGS)
    for damaged in sorted(path for path in (tmp_path / "images").rglob("*") if path.is_file()):
        if not damaged.exists():
            continue
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0\1")
        with pytest.warns(RuntimeWarning, match="embeddings of images"):
            assert store(tmp_path).read(DIGEST) is None
        store(tmp_path).write(DIGEST, EMBEDDINGS)
        entry = store(tmp_path).read(DIGEST)
        assert entry is not None
        assert entry.tobytes() == EMBEDDINGS.tobytes()
        break


def test_the_least_recently_used_leave_and_large_ones_stay_out(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store(tmp_path).write(DIGEST, EMBEDDINGS)
        size = sum(entry.bytes for entry in PictureCatalog(tmp_path / "images").entries())
        small = store(tmp_path, capacity=2 * size + size // 2)
        for number in range(4):
            small.write(bytes([number]), EMBEDDINGS)
        remaining = [number for number in range(4) if small.read(bytes([number])) is not None]
        assert remaining == [2, 3]
        tiny = store(tmp_path, capacity=100)
        tiny.write(b"large", EMBEDDINGS)
        assert tiny.read(b"large") is None
    entries = PictureCatalog(tmp_path / "images").entries()
    assert {entry.model for entry in entries} == {"a model"}
    assert not PictureCatalog(tmp_path / "images").verify()
