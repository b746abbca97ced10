"""A snapshot's key differs where its pages would."""

from pathlib import Path

import jax
import pytest

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.identity import Identity
from rekindle.core.device.place import Place
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from tests.unit.stored_snapshots import snapshot_key


def key_of(model: Path, settings: Settings | None = None) -> SnapshotKey:
    """Return the key that a session of the model would have."""
    return Identity.of(
        Blueprint.of(open_checkpoint(model), settings or Settings(), Place((jax.devices()[0],)))
    ).pages_key()


@pytest.mark.parametrize("part", ["model", "weights", "numbers"])
def test_every_part_changes_the_digest_and_is_named(part: str) -> None:
    here = snapshot_key()
    there = SnapshotKey(tuple((here.parts() | {part: "another"}).items()))
    assert here.digest != there.digest
    assert here.explain(there.parts()) == {part: (here.parts()[part], "another")}


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (Settings(num_pages=99, max_running=2), set()),
        (Settings(page_size=32), {"page_size", "page"}),
        (Settings(dtype="bfloat16"), {"numbers", "page"}),
        (Settings(kv_dtype="float32"), set()),
        (Settings(kv_dtype="bfloat16"), {"numbers", "page"}),
        (Settings(kv_dtype="int8"), {"numbers", "page"}),
    ],
)
def test_settings_are_in_the_key_where_pages_depend_on_them(
    settings: Settings, parts: set[str], families: Path
) -> None:
    model = families / "llama-tied"
    assert set(key_of(model).explain(key_of(model, settings).parts())) == parts


def test_the_model_and_its_weights_are_in_the_key(families: Path) -> None:
    differ = key_of(families / "llama-tied").explain(key_of(families / "qwen2").parts())
    assert {"configs", "model", "weights"} <= set(differ) <= {"configs", "model", "weights", "page"}


def test_the_same_parts_make_the_same_digest() -> None:
    assert snapshot_key().digest == snapshot_key().digest
    assert len(snapshot_key().digest) == 64
    assert snapshot_key().explain(snapshot_key().parts()) == {}


def test_parts_that_only_one_side_has_are_named() -> None:
    parts = snapshot_key().parts()
    del parts["numbers"]
    assert snapshot_key().explain(parts | {"adapter": "x"}) == {"numbers": ("float32", ""), "adapter": ("", "x")}
