"""A snapshot's key differs where its pages would, and weight files are told apart without being read."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rekindle.store import snapshot_key
from rekindle.store.snapshot_key import SnapshotKey, weights_fingerprint
from rekindle.store.validity import code_digest
from tests.unit.stored_programs import MODEL


def key_of(**changes: object) -> SnapshotKey:
    parts: dict[str, object] = {
        "model": MODEL,
        "weights": "w",
        "dtype": "float32",
        "page_size": 16,
        "page_shape": (3, 2, 4, 16, 4),
        "page_dtype": "float32",
        "platform": "cpu",
    }
    return SnapshotKey.of(**(parts | changes))  # type: ignore[arg-type]


CHANGES: dict[str, dict[str, object]] = {
    "model": {"model": replace(MODEL, norm_eps=1e-6)},
    "weights": {"weights": "v"},
    "dtype": {"dtype": "bfloat16"},
    "page_size": {"page_size": 32},
    "page": {"page_shape": (3, 2, 4, 16, 8)},
    "platform": {"platform": "gpu"},
}


@pytest.mark.parametrize("part", CHANGES)
def test_every_part_changes_the_digest_and_is_named(part: str) -> None:
    here, there = key_of(), key_of(**CHANGES[part])
    assert here.digest != there.digest
    expected = {part: (here.parts()[part], there.parts()[part])}
    assert here.explain(there.parts()) == expected


def test_the_dtype_of_pages_changes_the_digest() -> None:
    assert key_of().digest != key_of(page_dtype="uint16").digest


def test_the_code_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of()
    assert before.code == code_digest()
    monkeypatch.setattr(snapshot_key, "code_digest", lambda: "edited")
    assert before.explain(key_of().parts()) == {"code": (before.code, "edited")}


def test_the_same_parts_make_the_same_digest() -> None:
    assert key_of().digest == key_of().digest
    assert len(key_of().digest) == 64
    assert key_of().explain(key_of().parts()) == {}


def test_parts_that_only_one_side_has_are_named() -> None:
    parts = key_of().parts()
    del parts["dtype"]
    assert key_of().explain(parts | {"adapter": "x"}) == {"dtype": ("float32", ""), "adapter": ("", "x")}


LARGE = 5 << 20


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    """A large file and a small one."""
    files = [tmp_path / "model-1.safetensors", tmp_path / "model-2.safetensors"]
    files[0].write_bytes(np.random.default_rng(0).bytes(LARGE))
    files[1].write_bytes(b"small")
    return files


def changed_without_a_trace(path: Path, offset: int, content: bytes) -> None:
    """Edit a file and put its time of change back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_weights_keep_their_fingerprint_in_any_order(weights: list[Path]) -> None:
    assert weights_fingerprint(weights) == weights_fingerprint(weights[::-1])
    assert len(weights_fingerprint(weights)) == 64


def test_weights_keep_their_fingerprint_where_their_directory_is_moved(weights: list[Path], tmp_path: Path) -> None:
    before = weights_fingerprint(weights)
    (tmp_path / "elsewhere").mkdir()
    assert weights_fingerprint([path.rename(tmp_path / "elsewhere" / path.name) for path in weights]) == before


@pytest.mark.parametrize("place", [0, 1])
def test_a_file_that_was_touched_is_another_one(place: int, weights: list[Path]) -> None:
    before, status = weights_fingerprint(weights), weights[place].stat()
    os.utime(weights[place], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert weights_fingerprint(weights) != before


@pytest.mark.parametrize(("place", "offset"), [(0, 0), (0, (1 << 20) - 1), (0, 1 << 20), (0, LARGE - 1), (1, 2)])
def test_samples_tell_files_apart_that_have_the_same_size_and_time(
    place: int, offset: int, weights: list[Path]
) -> None:
    before = weights_fingerprint(weights)
    changed_without_a_trace(weights[place], offset, b"\xff\x00"[: 1 + (offset != LARGE - 1)])
    assert weights_fingerprint(weights) != before


def test_files_that_changed_their_names_or_their_number_are_other_ones(weights: list[Path]) -> None:
    before = weights_fingerprint(weights)
    assert weights_fingerprint(weights[:1]) != before
    third = weights[0].with_name("third")
    weights[0].rename(third)
    weights[1].rename(weights[0])
    third.rename(weights[1])
    assert weights_fingerprint(weights) != before


def test_a_fingerprint_reads_little_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "sparse", []
    with path.open("wb") as file:
        file.truncate(20 << 30)

    class Hash:
        def update(self, content: bytes) -> None:
            read.append(len(content))

        def hexdigest(self) -> str:
            return ""

    monkeypatch.setattr("hashlib.sha256", Hash)
    weights_fingerprint([path])
    assert sum(read) < 3 << 20


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weights_fingerprint([tmp_path / "missing"])
