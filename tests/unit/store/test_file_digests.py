"""A file is told apart by all its bytes, and read once for that."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from rekindle.core.store import file_digests
from rekindle.core.store.file_digests import DIGESTS, PIECE_BYTES, file_digest
from rekindle.core.store.snapshot_key import content_fingerprint

SIZE = PIECE_BYTES + (5 << 20)


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the notes apart from those of other tests, and forget what the process knows."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digests, "_memory", {})
    return tmp_path / "cache" / DIGESTS


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the begins of the pieces read so far."""
    starts: list[int] = []
    piece = file_digests._piece

    def counted(path: Path, start: int) -> bytes:
        starts.append(start)
        return piece(path, start)

    monkeypatch.setattr(file_digests, "_piece", counted)
    return starts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a file of two pieces, an hour ago."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass."""
    later = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)


def edited(path: Path, offset: int) -> None:
    """Change one byte, and put the time of change back."""
    before = path.stat()
    with path.open("r+b") as content:
        content.seek(offset)
        byte = content.read(1)
        content.seek(offset)
        content.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("offset", [0, PIECE_BYTES - 1, PIECE_BYTES, SIZE // 2 + 7, SIZE - 1])
def test_each_byte_counts_also_under_the_same_size_and_time(
    offset: int, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(monkeypatch)
    before = file_digest(file)
    edited(file, offset)
    assert file_digest(file) != before
    edited(file, offset)
    assert file_digest(file) == before


def test_a_file_is_read_once_by_all_processes(
    file: Path, reads: list[int], notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(monkeypatch)
    before = file_digest(file)
    assert sorted(reads) == [0, PIECE_BYTES]
    assert file_digest(file) == before
    monkeypatch.setattr(file_digests, "_memory", {})  # another process
    assert file_digest(file) == before
    assert len(reads) == 2
    assert len(list(notes.iterdir())) == 1


def test_a_file_that_was_just_written_is_read_again(file: Path, reads: list[int], notes: Path) -> None:
    """Expect no note of a time that a later write may have too."""
    assert file_digest(file) == file_digest(file)
    assert len(reads) == 4
    assert not list(notes.glob("*"))


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b'{"file": 1, "state": 2, "digest": 3}', b"\xff\x00"])
def test_a_damaged_note_is_made_anew(
    note: bytes, file: Path, reads: list[int], notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(monkeypatch)
    before = file_digest(file)
    (path,) = notes.iterdir()
    path.write_bytes(note)
    monkeypatch.setattr(file_digests, "_memory", {})
    assert file_digest(file) == before
    assert len(reads) == 4
    assert json.loads(path.read_bytes())["digest"] == before


def test_the_notes_of_files_that_are_gone_are_removed(
    file: Path, tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(monkeypatch)
    file_digest(file)
    file.rename(tmp_path / "moved")
    file_digest(tmp_path / "moved")
    assert [json.loads(note.read_bytes())["file"] for note in notes.iterdir()] == [str(tmp_path / "moved")]


def test_without_a_usable_directory_nothing_is_noted(
    file: Path, reads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(monkeypatch)
    (tmp_path / "occupied").write_text("")
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "occupied"))
    before = file_digest(file)
    monkeypatch.setattr(file_digests, "_memory", {})
    assert file_digest(file) == before
    assert len(reads) == 4


def test_copies_have_the_same_fingerprint_in_any_order(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, content in zip(paths, (b"1", b"2", b"1"), strict=True):
        path.write_bytes(content)
    assert content_fingerprint(paths[:2]) == content_fingerprint(paths[1:]) != content_fingerprint(paths[:1])
    assert content_fingerprint(paths[:1]) != content_fingerprint([paths[0], paths[2]])


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        content_fingerprint([tmp_path / "missing"])
