"""Patches of each family of models hold the pixels that transformers' PIL processors make, to the last bit."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import InvalidRequest
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.towers import tower_kind
from rekindle.formats.images.processors.arrays import in_patches, resize_to_cells
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor
from rekindle.formats.images.processors.gemma import Gemma4Images
from rekindle.formats.images.processors.processor import ImageProcessor, tokens_of
from rekindle.formats.images.sources import image_source
from rekindle.formats.model_file import read_json
from tests.unit.images.vision_goldens import PIXELS, SOURCES, VISION, sha256


@dataclass(frozen=True)
class Family:
    """A golden of pixels.

    Attributes:
        model: the tiny model with the family's config and tokens.
        patch: pixels of a patch's side.
        settings: changes of its config.
        tower: changes of its "vision_config".
    """

    model: str
    patch: int
    settings: dict[str, Any] = field(default_factory=dict)
    tower: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "gemma3": Family("gemma3", 14, {"mm_tokens_per_image": 256}, {"image_size": 896}),
    "gemma3-pan": Family("gemma3", 4, {"mm_tokens_per_image": 25}, {"image_size": 40}),
    "internvl": Family("internvl", 14, tower={"image_size": [448, 448]}),
    "internvl-small": Family("internvl", 7, tower={"image_size": 28}),
    "granite-vision": Family("granite-vision", 14, {"image_grid_pinpoints": None}, {"image_size": 384}),
    "lfm2-vl": Family("lfm2-vl", 16),
    "lfm2-vl-small": Family("lfm2-vl", 8),
    "llava": Family("llava", 14, tower={"image_size": 336}),
    "llava-next": Family("llava-next", 14, {"image_grid_pinpoints": None}, {"image_size": 336}),
    "llava-next-small": Family("llava-next", 8),
    "llava-padded": Family("llava", 8),
    "llava-square": Family("llava", 14, tower={"image_size": 384}),
    "paligemma": Family("paligemma", 14, tower={"image_size": 224}),
    "pixtral": Family("pixtral", 16),
    "mistral3": Family("mistral3", 14, {"spatial_merge_size": 2}),
    "mistral3-small": Family("mistral3", 4, {"spatial_merge_size": 2}),
    "qwen2_5-vl": Family("qwen2_5-vl", 14),
    "qwen2_5-vl-small": Family("qwen2_5-vl", 14),
    "qwen3-vl": Family("qwen3-vl", 16),
    "qwen3-vl-small": Family("qwen3-vl", 8),
}


def rules_by(family: Family, settings: dict[str, Any]) -> ImageProcessor:
    """Return the processor with the settings of a golden."""
    directory = VISION / family.model
    config = read_json(directory / "config.json")
    tower = {**config["vision_config"], "patch_size": family.patch, **family.tower}
    files: dict[str, dict[str, Any]] = {each: {} for each in IMAGE_SETTINGS} | {"preprocessor_config": settings}
    config = {**config, "vision_config": tower, **family.settings}
    rules = image_processor(tower_kind(config), directory, config, files, load_tokenizer(directory))
    assert rules is not None
    return rules


def image_of(patches: Patches, patch: int) -> np.ndarray:
    """Return the pixels of each segment's patches by their rows and columns, (segments, 3, height, width)."""
    segments = []
    for segment in np.flatnonzero(patches.valid.any(1)).tolist():
        image = by_place(patches, segment, patch)
        rows, columns, *_ = image.shape
        segments.append(image.transpose(4, 0, 2, 1, 3).reshape(3, rows * patch, columns * patch))
    return np.stack(segments)


def by_place(patches: Patches, segment: int, patch: int) -> np.ndarray:
    """Return the patches of a segment, (rows, columns, patch, patch, 3)."""
    is_valid = patches.valid[segment]
    values, places = patches.values[segment][is_valid], patches.positions[segment][is_valid]
    rows, columns = places.max(0) + 1
    assert len({*map(tuple, places.tolist())}) == len(places) == rows * columns, "each place has one patch"
    image = np.empty((rows, columns, patch, patch, 3), np.float32)
    image[places[:, 0], places[:, 1]] = values.reshape(-1, patch, patch, 3)
    return image


def padded_rows_of(patches: Patches, patch: int, length: int) -> np.ndarray:
    """Return the patches of each segment by row, with zeros behind them, (segments, length, patch * patch * 3)."""
    rows = np.zeros((len(patches.valid), length, patch * patch * 3), np.float32)
    for segment in range(len(rows)):
        own = by_place(patches, segment, patch).reshape(-1, rows.shape[2])
        rows[segment, : len(own)] = own
    return rows


def frames_of(patches: Patches, patch: int) -> np.ndarray:
    """Return the patches of one segment as those of two frames, (patches, 3 * 2 * patch²)."""
    values = patches.values.reshape(-1, patch, patch, 3, patches.values.shape[2] // (3 * patch**2))
    frames = values.transpose(0, 3, 4, 1, 2)
    return np.repeat(frames, 2 // frames.shape[2], axis=2).reshape(len(values), -1)


def layout_of(kind: str, patches: Patches, patch: int, shape: list[int]) -> np.ndarray:
    """Return patches in the layout of a golden."""
    if kind == "qwen":
        return frames_of(patches, patch)
    return padded_rows_of(patches, patch, shape[1]) if kind == "lfm2" else image_of(patches, patch)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FAMILIES)
def test_pixels_and_texts_are_those_of_transformers(name: str, source: str) -> None:
    golden = json.loads((PIXELS / f"{name}.json").read_text())
    rules, expected = rules_by(FAMILIES[name], golden["settings"]), golden["images"][source]
    pixels = image_source(PIXELS / "sources" / source).pixels()
    size = pixels.shape[:2]
    if "aspect ratio" in expected.get("error", ""):
        with pytest.raises(InvalidRequest, match="at most 200 times"):
            tokens_of(rules, *size)
        return
    patches = rules.patches(pixels)
    assert patches.valid.shape[1] <= rules.segments[-1]
    grids = [grid.reshape(-1) for grid in rules.grids(*size)]
    assert sorted(np.concatenate(grids).tolist()) == list(range(tokens_of(rules, *size))), "each token has a place"
    if "error" in expected:  # transformers has no place for a thin picture
        assert "=0" in expected["error"] or "equal size" in expected["error"]
        assert min(size) == 1 or min(rules.grids(*size)[-1].shape) == 1
        return
    image = layout_of(golden["kind"], patches, FAMILIES[name].patch, expected["shape"])
    assert list(image.shape) == expected["shape"]
    assert sha256(image) == expected["f32_sha256"]
    assert tokens_of(rules, *size) == expected["image_tokens"] <= rules.most_tokens
    assert hashlib.sha256(rules.text(*size).encode()).hexdigest() == expected["text_sha256"]
    low = rules.at_low_detail()
    is_joined = not name.startswith(("llava", "granite"))
    few = min(tokens_of(rules, *size), 256) if is_joined else rules.segments[0] + 1  # one square, and the end of a row
    assert tokens_of(low, *size) <= few
    assert low == rules or repr(low) != repr(rules), "its images have other digests"


@pytest.mark.parametrize("name", ["ministral3", "mistral3", "pixtral"])
def test_pixels_of_a_prompt_are_those_of_transformers(name: str) -> None:
    checkpoint = open_checkpoint(VISION / name)
    assert checkpoint.images is not None
    assert checkpoint.vision is not None
    patch = checkpoint.vision.config.patch_size
    with np.load(VISION / name / "golden.npz") as file:
        arrays = dict(file)
    for number, images in enumerate([(0,), (1, 2)]):
        expected, sizes = arrays[f"{number}_pixel_values"], arrays[f"{number}_image_sizes"]
        for image, padded, (height, width) in zip(images, expected, sizes, strict=True):
            patches = checkpoint.images.patches(image_source(VISION / name / f"image-{image}.png").pixels())
            np.testing.assert_array_equal(image_of(patches, patch)[0], padded[:, :height, :width])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("name", "patch"), [("gemma4", 16), ("gemma4-70", 4)])
def test_patches_of_gemma_4_are_those_of_transformers(name: str, patch: int, source: str) -> None:
    golden = json.loads((PIXELS / f"{name}.json").read_text())
    rules, expected = rules_by(Family("gemma4-dense", patch, {}), golden["settings"]), golden["images"][source]
    assert isinstance(rules, Gemma4Images)
    pixels = image_source(PIXELS / "sources" / source).pixels()
    size = pixels.shape[:2]
    image = rules.normalization.apply(resize_to_cells(pixels, rules.grid(*size), rules.cell, rules.resample))
    (values,) = in_patches(image[None], patch, 1)
    padded = np.pad(values, [(0, rules.segments[-1] - len(values)), (0, 0)])[None]
    assert list(padded.shape) == expected["shape"]
    assert sha256(padded) == expected["f32_sha256"]
    assert tokens_of(rules, *size) == expected["image_tokens"] == rules.grids(*size)[0].size
    assert hashlib.sha256(rules.text(*size).encode()).hexdigest() == expected["text_sha256"]
    patches = rules.patches(pixels)
    whole = image_of(patches, patch)[0].transpose(1, 2, 0)
    np.testing.assert_array_equal(whole, 2 * (image - np.float32(0.5)))
    assert tokens_of(rules.at_low_detail(), *size) <= min(tokens_of(rules, *size), 70)
    assert rules.at_low_detail().segments == rules.segments, "low detail needs no program of its own"
