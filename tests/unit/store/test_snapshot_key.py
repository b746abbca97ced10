"""A snapshot's key differs where its pages would, and weight files are told apart without being read."""

import os
from dataclasses import fields, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from rekindle.assembly.loading import blueprint
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.device.place import Place
from rekindle.core.store.snapshot_key import SnapshotKey, weights_fingerprint
from rekindle.core.store.validity import code_digest
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from tests.unit.stored_snapshots import snapshot_key


def key_of(model: Path, settings: Settings | None = None) -> SnapshotKey:
    """Return the key that a session of the model would have."""
    return Blueprint.of(open_checkpoint(model), settings or Settings(), Place((jax.devices()[0],))).snapshot_key()


@pytest.mark.parametrize("part", [field.name for field in fields(SnapshotKey)])
def test_every_part_changes_the_digest_and_is_named(part: str) -> None:
    here = snapshot_key()
    there = replace(here, **{part: "another"})
    assert here.digest != there.digest
    assert here.explain(there.parts()) == {part: (here.parts()[part], "another")}


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (Settings(num_pages=99, max_running=2), set()),
        (Settings(page_size=32), {"page_size", "page"}),
        (Settings(dtype="bfloat16"), {"dtype", "page"}),
        (Settings(kv_dtype="float32"), set()),
        (Settings(kv_dtype="bfloat16"), {"page"}),
        (Settings(kv_dtype="int8"), {"page"}),
    ],
)
def test_settings_are_in_the_key_where_pages_depend_on_them(
    settings: Settings, parts: set[str], families: Path
) -> None:
    model = families / "llama-tied"
    assert set(key_of(model).explain(key_of(model, settings).parts())) == parts


def test_the_model_and_its_weights_are_in_the_key(families: Path) -> None:
    differ = key_of(families / "llama-tied").explain(key_of(families / "qwen2").parts())
    assert {"model", "weights"} <= set(differ) <= {"model", "weights", "page"}


def test_the_code_is_part_of_the_key(families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(families / "llama-tied")
    assert before.code == code_digest()
    monkeypatch.setattr(blueprint, "code_digest", lambda: "edited")
    assert before.explain(key_of(families / "llama-tied").parts()) == {"code": (before.code, "edited")}


def test_the_same_parts_make_the_same_digest() -> None:
    assert snapshot_key().digest == snapshot_key().digest
    assert len(snapshot_key().digest) == 64
    assert snapshot_key().explain(snapshot_key().parts()) == {}


def test_parts_that_only_one_side_has_are_named() -> None:
    parts = snapshot_key().parts()
    del parts["dtype"]
    assert snapshot_key().explain(parts | {"adapter": "x"}) == {"dtype": ("float32", ""), "adapter": ("", "x")}


LARGE = 5 << 20


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    """Write a large file and a small one."""
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
    path, sizes = tmp_path / "sparse", []
    with path.open("wb") as file:
        file.truncate(20 << 30)

    class Hash:
        def update(self, content: bytes) -> None:
            sizes.append(len(content))

        def hexdigest(self) -> str:
            return ""

    monkeypatch.setattr("hashlib.sha256", Hash)
    weights_fingerprint([path])
    assert sum(sizes) < 3 << 20


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weights_fingerprint([tmp_path / "missing"])
