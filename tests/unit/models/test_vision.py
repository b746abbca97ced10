"""A vision tower gives the embeddings of transformers, whatever other images and padding are in its batch."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.loading.filling import place_weights
from rekindle.assembly.weights.reading import Conversion
from rekindle.core.device.place import Place
from rekindle.core.models.vision.config import Merge, Product
from rekindle.core.models.vision.patches import Patches
from rekindle.core.models.vision.tower import abstract_tower
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.checkpoint import TowerFiles
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.images.parts import images_in
from rekindle.formats.images.processors.arrays import in_squares
from rekindle.formats.images.processors.processor import tokens_of
from rekindle.formats.images.videos import Video
from rekindle_kernels.api import Implementation
from tests.engine.pictured import Pictured
from tests.vision import SMOLVLM, Array, RunningTower, golden, padded, patches_of

WIDE = (
    *("gemma4-dense", "gemma4-e", "granite-vision", "internvl", "lfm2-vl", "llava", "llava-next", "ministral3"),
    *("mistral3", "paligemma", "pixtral", "qwen2_5-vl", "qwen3_5"),
)
FAMILIES = ("gemma3", "qwen3-vl", *(pytest.param(name, marks=pytest.mark.wide) for name in WIDE))
"""Tiny models beside SmolVLM."""
WITH_KERNELS = pytest.mark.parametrize("implementation", [pytest.param("xla", marks=pytest.mark.wide), "cpu"])


@pytest.fixture(scope="module")
def files() -> TowerFiles:
    vision = open_checkpoint(SMOLVLM).vision
    assert vision is not None
    return vision


def some(patches: Patches, tiles: slice) -> Patches:
    each: Patches = jax.tree.map(lambda array: array[tiles], patches)
    return each


@WITH_KERNELS
@pytest.mark.parametrize("prompt", [0, 1])
def test_embeddings_are_those_of_transformers(files: TowerFiles, implementation: Implementation, prompt: int) -> None:
    pixels, expected = golden(prompt)
    embeddings = RunningTower.of(files, implementation=implementation).embed(patches_of(pixels, 8, 2))
    assert np.abs(embeddings - expected).max() < 1e-5 * np.abs(expected).max()


def rows_of(patches: Patches, merge: int) -> Array:
    """Return the rows of a tower's results for the tokens of an image, in their order."""
    if patches.order is None:
        return np.flatnonzero(patches.valid[:, :: merge**2])
    order = patches.order.reshape(-1)
    return np.argsort(order)[np.count_nonzero(order < 0) :]


@WITH_KERNELS
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_of_each_family_are_those_of_transformers(family: str, implementation: Implementation) -> None:
    model = Pictured(family)
    checkpoint = open_checkpoint(model.path)
    assert checkpoint.vision is not None
    assert checkpoint.images is not None
    tower = RunningTower.of(checkpoint.vision, implementation=implementation)
    for number in (0, 1):
        embeddings = []
        for image, _ in images_in(model.messages(number)):
            assert not isinstance(image, Video)
            pixels = image.pixels()
            patches = checkpoint.images.patches(pixels)
            alone, longer = (
                tower.embed(each)[rows_of(each, tower.config.merge)]
                for each in (patches, patches.padded(checkpoint.images.segments[-1]))
            )
            assert len(alone) == tokens_of(checkpoint.images, *pixels.shape[:2])
            assert np.abs(longer - alone).max() < 2e-6 * np.abs(alone).max()
            embeddings.append(alone)
        parts = [model.numbers[f"{number}_embedded"]]
        if f"{number}_taps" in model.numbers:
            parts += list(model.numbers[f"{number}_taps"])
        expected = np.concatenate(parts, axis=1)
        assert np.abs(np.concatenate(embeddings) - expected).max() < 1e-5 * np.abs(expected).max()


@WITH_KERNELS
def test_bfloat16_is_near(files: TowerFiles, implementation: Implementation) -> None:
    pixels, expected = golden(0)
    embeddings = RunningTower.of(files, "bfloat16", implementation).embed(patches_of(pixels, 8, 2))
    assert embeddings.dtype == np.float32
    assert np.abs(embeddings - expected).max() < 0.03 * np.abs(expected).max()


def test_positions_and_the_order_of_patches_matter(files: TowerFiles) -> None:
    pixels, expected = golden(0)
    tower, patches = RunningTower.of(files), patches_of(pixels, 8, 2)
    for other in (
        replace(patches, positions=np.zeros_like(patches.positions)),
        replace(patches, values=patches.values[:, ::-1], positions=patches.positions[:, ::-1]),
    ):
        assert np.abs(tower.embed(other) - expected).max() > 0.1 * np.abs(expected).max()


def test_the_bits_of_an_image_are_those_of_its_tiles_alone(files: TowerFiles) -> None:
    tower, patches = RunningTower.of(files, implementation="cpu"), patches_of(golden(0)[0], 8, 2)
    whole = tower.embed(patches).reshape(7, 4, -1)
    for tile in range(7):
        np.testing.assert_array_equal(tower.embed(some(patches, slice(tile, tile + 1))), whole[tile])
    np.testing.assert_array_equal(tower.embed(padded(patches, 5, 0))[: 7 * 4], whole.reshape(28, -1))


@WITH_KERNELS
def test_padding_of_segments_changes_nothing_beyond_rounding(files: TowerFiles, implementation: Implementation) -> None:
    tower, patches = RunningTower.of(files, implementation=implementation), patches_of(golden(0)[0], 8, 2)
    whole = tower.embed(patches).reshape(7, 4, -1)
    for length in (16, 240):
        longer = tower.embed(padded(patches, 2, length)).reshape(9, 4 + length // 4, -1)
        assert np.abs(longer[:7, :4] - whole).max() < 2e-6 * np.abs(whole).max()


def test_padding_of_segments_changes_no_bit_at_real_widths(files: TowerFiles) -> None:
    """Take the widths of a SigLIP base, as the rounding of narrow norms depends on the number of rows."""
    tower, patches = _wide(files), _noise(1, 256, 768)
    alone = tower.embed(patches)
    longer = tower.embed(padded(patches, 0, 256))
    np.testing.assert_array_equal(longer[: 256 // 16], alone)


def _noise(segments: int, length: int, width: int) -> Patches:
    values = np.random.default_rng(0).normal(size=(segments, length, width)).astype(np.float32)
    positions = np.tile(in_squares(length // 16, 16, 1), (segments, 1, 1))
    return Patches(values, positions, np.ones((segments, length), bool))


def _wide(files: TowerFiles) -> RunningTower:
    """Return a tower of one layer, with random weights."""
    encoder = files.config.encoder
    layer = encoder.layers[0]
    attention, feed_forward = layer.attention, layer.feed_forward
    assert attention is not None
    wide = replace(
        layer,
        attention=replace(attention, heads=12, kv_heads=12, head_dim=64, scale=0.125),
        feed_forward=replace(feed_forward, width=256),  # type: ignore[type-var]
    )
    rows = replace(encoder.positions, rows=1024)  # type: ignore[type-var]
    encoder = replace(encoder, hidden_size=768, layers=(wide,), positions=rows, max_context=1024)
    projector = Merge(4), Product("model.connector.modality_projection.proj", 64)
    config = replace(files.config, encoder=encoder, patch_size=16, projector=projector)
    form, random = WeightForm(jnp.dtype("float32")), np.random.default_rng(1)
    forms = abstract_tower(config, form, "cpu").forms
    return RunningTower(config, form, "cpu", [jnp.asarray(_drawn(random, each)) for each in forms])


def _drawn(random: np.random.Generator, form: jax.ShapeDtypeStruct) -> Array:
    drawn: Array = (random.normal(size=form.shape) * 0.03).astype(form.dtype)
    return drawn


def test_segments_without_a_valid_patch_are_left_out(files: TowerFiles) -> None:
    tower, patches = RunningTower.of(files, implementation="cpu"), patches_of(golden(0)[0][:2], 8, 2)
    embeddings = tower.embed(padded(patches, 3, 0)).reshape(5, -1)
    assert np.abs(embeddings[:2]).min(1).all()
    np.testing.assert_array_equal(embeddings[2:], 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_device_has_the_whole_tower(files: TowerFiles, dtype: str) -> None:
    form = WeightForm(jnp.dtype(dtype))
    devices = jax.devices()[:2]
    places = [Place((devices[0],)), Place(tuple(devices))]
    alone, both = place_weights(Conversion(files.config, files.tensors, form, "xla"), places, of_tower=True)
    abstract = abstract_tower(files.config, form, "xla")
    assert [each.shape for each in both] == [each.shape for each in abstract.forms]
    for one, other in zip(alone, both, strict=True):
        assert other.is_fully_replicated
        assert other.devices() == set(devices)
        np.testing.assert_array_equal(one, other)
