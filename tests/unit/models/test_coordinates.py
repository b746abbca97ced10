"""Tokens of images have positions by row and column, and add to the first layers, as in transformers."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.errors import CheckpointError
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.rope import compute_cos_sin
from rekindle.core.models.sequence import SequenceMixer, empty_memory
from rekindle.core.models.vision.embedded import Embedded
from rekindle.core.request.picture import Picture, coordinates_of, shift_behind
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.coordinates import with_coordinates, with_sections
from rekindle.formats.families.registry import parse_config

VISION = Path(__file__).parents[2] / "goldens" / "vision"
FAMILIES = (*(pytest.param(name, marks=pytest.mark.wide) for name in ("qwen2_5-vl", "qwen3-vl")), "qwen3_5")
IMAGE = 5
"""The id of the token of images."""


def golden(family: str, prompt: int) -> dict[str, Any]:
    with np.load(VISION / family / "golden.npz") as arrays:
        return {name[2:]: arrays[name] for name in arrays.files if name.startswith(f"{prompt}_")}


def pictures_of(arrays: dict[str, Any]) -> list[Picture]:
    """Return the images of a golden, whose merged patches are squares of two."""
    places = np.flatnonzero(arrays["input_ids"] == IMAGE).astype(np.int32)
    grids = [(int(rows) // 2, int(columns) // 2) for _, rows, columns in arrays["image_grid_thw"]]
    split = np.split(places, np.cumsum([rows * columns for rows, columns in grids])[:-1])
    source: Any = None
    return [Picture(bytes(16), where, source, grid) for where, grid in zip(split, grids, strict=True)]


@pytest.mark.parametrize("prompt", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_coordinates_are_those_of_transformers_in_any_chunk(family: str, prompt: int) -> None:
    arrays = golden(family, prompt)
    pictures, expected = pictures_of(arrays), arrays["positions"]
    tokens, delta = expected.shape[1], int(arrays["position_delta"])
    assert shift_behind(pictures) == delta
    whole = coordinates_of(pictures, 0, tokens + 5)
    np.testing.assert_array_equal(whole[:, :tokens], expected)
    np.testing.assert_array_equal(whole[:, tokens:], np.tile(np.arange(tokens, tokens + 5) + delta, (3, 1)))
    for start in range(0, tokens, 7):
        for end in (start + 1, min(start + 16, tokens), tokens):
            part = coordinates_of(pictures, start, end)
            index = np.tile(np.arange(start, end), (3, 1))
            np.testing.assert_array_equal(index if part is None else part, whole[:, start:end])
    first = int(pictures[0].positions[0])
    assert first == 0 or coordinates_of(pictures, 0, first) is None, "text before the first image has its programs"


def test_images_without_a_grid_have_positions_by_index() -> None:
    source: Any = None
    pictures = [Picture(bytes(16), np.arange(3, 9), source)]
    assert coordinates_of(pictures, 0, 12) is None
    assert shift_behind(pictures) == 0


def decoder_of(family: str) -> Decoder:
    directory = VISION / family
    settings = json.loads((directory / "config.json").read_text())
    checkpoint = open_checkpoint(directory)
    config = with_coordinates(settings, checkpoint.config, family)
    return load_decoder(config, checkpoint.tensors, jnp.dtype("float32"), "xla")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_embedded_images_are_those_of_transformers(family: str) -> None:
    graph, state = nnx.split(decoder_of(family))

    @jax.jit
    def logits(state: Any, tokens: Any, places: Any, pictures: Any) -> jax.Array:
        decoder = nnx.merge(graph, state)
        embedded = None if pictures is None else Embedded(*pictures)
        hidden, _ = decoder(tokens, places, empty_memory(decoder.config), SequenceMixer(), None, None, embedded)
        result: jax.Array = decoder.logits(hidden[-16:])
        return result

    arrays = golden(family, 0)
    tokens, expected = jnp.asarray(arrays["input_ids"]), arrays["logits"]
    parts = [arrays["embedded"], *arrays.get("taps", ())]
    rows = np.full(len(tokens), -1, np.int32)
    rows[arrays["input_ids"] == IMAGE] = np.arange(len(parts[0]))
    coordinates = coordinates_of(pictures_of(arrays), 0, len(tokens))
    buffer, bound = np.concatenate(parts, axis=1), np.abs(expected).max()

    def error(places: Any, buffer: Any) -> float:
        return float(np.abs(logits(state, tokens, jnp.asarray(places), (buffer, rows)) - expected).max() / bound)

    assert error(coordinates, buffer) < (5e-5 if family == "qwen3_5" else 1e-5)
    index = np.tile(np.arange(len(tokens), dtype=np.int32), (3, 1))
    assert error(index, buffer) > 0.01, "positions by index"
    if len(parts) > 1:
        assert error(coordinates, parts[0]) > 0.01, "no summands behind the first layers"
    by_index = logits(state, tokens, jnp.asarray(index[0]), None)
    np.testing.assert_array_equal(logits(state, tokens, jnp.asarray(index), None), by_index, "text, bit for bit")


def test_sections_take_pairs_in_turn_or_one_after_the_other() -> None:
    for family, axes in (("qwen3-vl", (0, 1, 2, 0, 1, 2, 0, 0)), ("qwen2_5-vl", (0, 0, 1, 1, 1, 2, 2, 2))):
        settings = json.loads((VISION / family / "config.json").read_text())
        text = parse_config(settings, family)
        assert not text.takes_coordinates, "a text model alone has one position for each token"
        config = with_coordinates(settings, text, family)
        assert {attention.rope.axes for attention in config.attentions if attention.rope} == {axes}
        with pytest.raises(CheckpointError, match="8 pairs together"):
            with_sections(text, [2, 3, 4], family, interleaved=False)
        with pytest.raises(CheckpointError, match="three numbers"):
            with_sections(text, ["2"], family, interleaved=True)
        (rope,) = {attention.rope for attention in config.attentions}
        coordinates = jnp.asarray([[3], [7], [11]], jnp.int32)
        cos, _ = compute_cos_sin(rope, coordinates, jnp.ones(1, jnp.int32), 16)
        for pair, axis in enumerate(axes):
            alone, _ = compute_cos_sin(rope, coordinates[axis], jnp.ones(1, jnp.int32), 16)
            assert cos[0, pair] == alone[0, pair]
