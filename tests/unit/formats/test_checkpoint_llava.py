"""Towers of LLaVA, LLaVA-NeXT and Granite Vision open from llama.cpp's files with the projector "mlp"."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.vision.config import VisionConfig
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.vision.mmproj import OpenedTower, open_tower
from rekindle.formats.images.processors.squares import SquareImages
from tests.engine.pictured import Pictured
from tests.gguf_models.llava import write_llava_mmproj

LLAVA = Pictured("llava")
WIDE = pytest.mark.wide


def tower_in(model: Pictured, path: Path, change: Callable[[gguf.GGUFWriter], None] | None = None) -> OpenedTower:
    checkpoint = open_checkpoint(model.path)
    return open_tower(write_llava_mmproj(model.path, path, change), checkpoint.config, checkpoint.tokenizer)


@pytest.mark.parametrize("family", ["llava", pytest.param("llava-next", marks=WIDE), "granite-vision"])
def test_the_tower_is_that_of_the_directory(family: str, tmp_path: Path) -> None:
    model = Pictured(family)
    expected, tower = open_checkpoint(model.path), tower_in(model, tmp_path / "mmproj-f16.gguf")
    assert expected.vision is not None
    wanted = expected.vision.config
    assert tower.files.config == replace(wanted, encoder=_names_of(wanted, tower.files.config))
    for name, tensor in expected.vision.tensors.items():
        stored, own = (np.asarray(each, np.float32) for each in (tower.files.tensors[name], tensor))
        if "linear_" in name or "patch_embedding.weight" in name:
            own = own.astype(np.float16).astype(np.float32) if own.ndim > 1 else own
        np.testing.assert_array_equal(stored, own, err_msg=name)
    if family == "llava":
        assert isinstance(tower.images, SquareImages)
        assert tower.images.padding == (122, 116, 104), "LLaVA 1.5 was trained on padded squares"
        assert replace(tower.images, padding=None) == expected.images
    else:
        assert tower.images == expected.images


def _names_of(wanted: VisionConfig, config: VisionConfig) -> Any:
    """Return the encoder of a config with the names of another one's."""
    return replace(wanted.encoder, names=config.encoder.names)


def with_tensor(name: str, shape: tuple[int, ...] = (32, 32)) -> Callable[[gguf.GGUFWriter], None]:
    return lambda writer: writer.add_tensor(name, np.ones(shape, np.float32))


def with_text(key: str, value: str) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(f"clip.vision.{key}", None)
        writer.add_string(f"clip.vision.{key}", value)

    return change


def test_pictures_as_squares_are_cut_where_the_file_says_so(tmp_path: Path) -> None:
    images = tower_in(LLAVA, tmp_path / "square.gguf", with_text("image_aspect_ratio", "square")).images
    assert images == open_checkpoint(LLAVA.path).images


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llava", with_tensor("mm.3.weight"), "norms between its products, as in Yi-VL"),
        ("llava", with_tensor("v.post_ln.weight", (32,)), "a norm behind its encoder"),
        ("llava", with_text("image_aspect_ratio", "anyres"), "image_aspect_ratio 'anyres' without sizes of tiles"),
        ("llava-next", with_text("mm_patch_merge_type", "flat"), "mm_patch_merge_type 'flat' is not supported"),
    ],
)
def test_other_projectors_are_refused_by_name(
    family: str, change: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        tower_in(Pictured(family), tmp_path / "mmproj.gguf", change)


def test_the_size_of_embeddings_is_that_of_the_projector(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(LLAVA.path)
    path = write_llava_mmproj(LLAVA.path, tmp_path / "mmproj.gguf")
    with pytest.raises(UnsupportedModel, match="for embeddings of 32 numbers, and those of the model have 48"):
        open_tower(path, replace(checkpoint.config, hidden_size=48))
