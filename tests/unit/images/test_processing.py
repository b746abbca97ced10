"""Images become the numbers that transformers' PIL processors make of them, to the last bit."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor
from rekindle.formats.images.processors.processor import tokens_of
from rekindle.formats.images.processors.tiled.idefics3 import MOST_TILES, Idefics3Images
from rekindle.formats.images.sources import image_source
from rekindle.formats.model_file import read_json
from tests.unit.images.vision_goldens import PIXELS, SMOLVLM, SOURCES, sha256, smolvlm_images

TOWERS = {"smolvlm": (512, 16, 4), "smolvlm-small": (32, 8, 2), "smolvlm-whole": (48, 8, 2), "idefics3": (364, 14, 2)}
"""Pixels of a tile and of a patch, and patches of a token along a side, by the golden's name."""


def golden_rules(name: str, settings: dict[str, Any]) -> Idefics3Images:
    """Return the processor with the settings of a golden."""
    image_size, patch, merge = TOWERS[name]
    config = {
        **read_json(SMOLVLM / "config.json"),
        "scale_factor": merge,
        "vision_config": {"image_size": image_size, "patch_size": patch},
    }
    files: dict[str, Any] = {name: {} for name in IMAGE_SETTINGS} | {"preprocessor_config": settings}
    rules = image_processor("idefics3", SMOLVLM, config, files, load_tokenizer(SMOLVLM))
    assert isinstance(rules, Idefics3Images)
    return rules


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", TOWERS)
def test_pixels_and_texts_are_those_of_transformers(name: str, source: str) -> None:
    golden = json.loads((PIXELS / f"{name}.json").read_text())
    rules, expected = golden_rules(name, golden["settings"]), golden["images"][source]
    pixels = image_source(PIXELS / "sources" / source).pixels()
    tiles = rules.tiles(pixels)
    assert [len(tiles), 3, *tiles.shape[1:3]] == expected["shape"]
    assert sha256(tiles.transpose(0, 3, 1, 2)) == expected["u8_sha256"]
    assert sha256(rules.normalization.apply(tiles).transpose(0, 3, 1, 2)) == expected["f32_sha256"]
    height, width, _ = pixels.shape
    assert list(rules.grid(height, width)) == [expected["rows"][0][0], expected["cols"][0][0]]
    assert tokens_of(rules, height, width) == expected["image_tokens"]
    assert hashlib.sha256(rules.text(height, width).encode()).hexdigest() == expected["text_sha256"]


def test_patches_are_in_the_order_of_their_tokens() -> None:
    rules = smolvlm_images()
    pixels = image_source(SMOLVLM / "image-0.png").pixels()
    patches, tiles = rules.patches(pixels), rules.normalization.apply(rules.tiles(pixels))
    side, size, merge = rules.tile // rules.patch, rules.patch, rules.merge
    for index in range(side**2):
        token, within = divmod(index, merge**2)
        row = token // (side // merge) * merge + within // merge
        column = token % (side // merge) * merge + within % merge
        part = tiles[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
        np.testing.assert_array_equal(patches.values[:, index], part.reshape(len(tiles), -1))
        assert (patches.positions[:, index] == [row, column]).all()
    assert patches.valid.all()
    assert len(patches.values) * side**2 // merge**2 == tokens_of(rules, *pixels.shape[:2])


def test_a_tile_with_a_remainder_loses_it_as_in_a_convolution() -> None:
    """Check the tile of SmolVLM2 2.2B: 384 pixels, and patches of 14."""
    rules = golden_rules("smolvlm-small", {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 35}})
    assert rules.tokens_of_tile == 4
    patches = rules.patches(np.zeros((10, 10, 3), np.uint8))
    assert patches.values.shape == (10, 16, 8 * 8 * 3)


@pytest.mark.parametrize(
    ("count", "side", "rows"),
    [
        (4, 4, [0, 1, 2, 3]),
        (3, 4, [0, 1, 2]),
        (2, 8, [0, 4]),
        (27, 27, list(range(27))),
        (26, 26, list(range(26))),
        (32, 32, list(range(32))),
    ],
)
def test_rows_of_the_position_table_are_fractions_of_a_side(count: int, side: int, rows: list[int]) -> None:
    """Check sides of published towers; torch's `bucketize` returned the same for them."""
    rules = Idefics3Images(8 * count, 8 * count, False, 1, smolvlm_images().normalization, 8, side, 1)
    patches = rules.patches(np.zeros((8, 8, 3), np.uint8))
    assert patches.positions[0, :count, 1].tolist() == rows
    assert patches.positions[0, ::count, 0].tolist() == rows


def test_low_detail_is_the_whole_image_alone() -> None:
    rules = smolvlm_images()
    pixels = image_source(SMOLVLM / "image-1.png").pixels()
    low = rules.at_low_detail()
    assert tokens_of(low, *pixels.shape[:2]) == rules.tokens_of_tile
    assert low.patches(pixels).values.shape[0] == 1
    assert repr(low) != repr(rules), "its images have other digests"


@pytest.mark.parametrize("size", [(3000, 2000), (2000, 3000), (1, 3000), (4096, 4096), (3000, 1), (1, 1), (700, 4000)])
def test_no_image_has_more_tiles_than_the_largest_bucket(size: tuple[int, int]) -> None:
    rules = golden_rules("smolvlm", {"size": {"longest_edge": 4096}, "max_image_size": {"longest_edge": 512}})
    rows, columns = rules.grid(*size)
    assert rows * columns <= MOST_TILES
    if min(size) == 1 < max(size):
        assert max(rows, columns) == 8, "an image that fits keeps its length"
    tiles = rules.tiles(np.zeros((*size, 3), np.uint8)) if max(size) < 3000 else None
    assert tiles is None or len(tiles) == rows * columns + 1


def test_settings_are_also_read_from_the_processor_config() -> None:
    files: dict[str, Any] = {name: read_json(SMOLVLM / f"{name}.json") for name in IMAGE_SETTINGS}
    files["processor_config"] = {**files["processor_config"], "image_processor": files["preprocessor_config"]}
    files["preprocessor_config"] = {}
    rules = image_processor("idefics3", SMOLVLM, read_json(SMOLVLM / "config.json"), files, load_tokenizer(SMOLVLM))
    assert rules == smolvlm_images()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"do_resize": False}, UnsupportedModel),
        ({"size": {"longest_edge": "96"}}, CheckpointError),
        ({"max_image_size": {"longest_edge": 0}}, CheckpointError),
        ({"max_image_size": {"longest_edge": 64}}, CheckpointError),
        ({"image_mean": [0.5]}, CheckpointError),
        ({"image_std": "no"}, CheckpointError),
    ],
)
def test_settings_that_do_not_fit_are_errors_of_the_checkpoint(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="smolvlm"):
        smolvlm_images(**changes)


def test_text_models_have_no_image_processor(tmp_path: Path) -> None:
    empty: dict[str, Any] = {name: {} for name in IMAGE_SETTINGS}
    assert image_processor(None, tmp_path, {"model_type": "llama"}, empty, load_tokenizer(SMOLVLM)) is None
    assert image_processor("idefics3", tmp_path, read_json(SMOLVLM / "config.json"), empty, None) is None
