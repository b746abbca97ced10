"""Taps: activations, attention patterns and interventions of a decoder, compared with transformers."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.layer_parts import PARTS
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.inspection.inputs import LookInputs
from rekindle.core.models.inspection.look import look
from rekindle.core.models.taps.interventions import Interventions
from rekindle.formats.checkpoints.open import open_checkpoint

INSIDE = Path(__file__).parents[2] / "goldens" / "inside.npz"
FEW = ("llama-tied", "deepseek-v3")
MANY = (
    *("gemma2", "lfm2"),
    *("gpt2", "mixtral", "cohere", "gpt-oss", "granite", "falcon-h1", "gpt-neox", "nemotron-h", "phi3-longrope"),
    "llama4",
)
FAMILIES = (*FEW, *(pytest.param(family, marks=pytest.mark.wide) for family in MANY))
PADDED = 48
"""The length of a look at 40 tokens."""


def loaded(directory: Path) -> Decoder:
    checkpoint = open_checkpoint(directory)
    return load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"), "xla")


def interventions(hidden: int, *entries: tuple[int, bool, int, int, Any]) -> Interventions:
    arrays: Any = Interventions.none((1,), hidden)
    for place, (layer, replaces, first, end, vector) in enumerate(entries):
        arrays.layers[0, place], arrays.replaces[0, place], arrays.vectors[0, place] = layer, replaces, vector
        arrays.first[0, place], arrays.end[0, place] = first, end
    interventions: Interventions = arrays
    return interventions


def looked(
    decoder: Decoder, ids: Any, heads: list[tuple[int, int]], changes: Interventions | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the activations (layers + 1, parts, tokens, hidden) and the patterns of heads."""
    config: ModelConfig = decoder.config
    count = (len(config.layers) + 1) * len(PARTS)
    inputs = LookInputs(
        jnp.pad(jnp.asarray(ids), (0, PADDED - len(ids))),
        jnp.int32(len(ids)),
        jnp.arange(count, dtype=jnp.int32).reshape(-1, len(PARTS)),
        jnp.asarray(heads, jnp.int32).reshape(-1, 2),
        interventions(config.hidden_size) if changes is None else changes,
    )
    graph, state = nnx.split(decoder)
    run = jax.jit(lambda state, inputs: look(nnx.merge(graph, state), inputs, count))
    activations, patterns = run(state, inputs)
    activations = np.asarray(activations).reshape(-1, len(PARTS), PADDED, config.hidden_size)
    return activations[:, :, : len(ids)], np.asarray(patterns)[:, : len(ids), : len(ids)]


@pytest.mark.wide
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_activations_are_those_of_transformers(family: str, families: Path) -> None:
    golden = np.load(INSIDE)
    expected = partial(lambda name: golden[f"{family}/{name}"])
    decoder = loaded(families / family)
    config = decoder.config
    with_attention = [i for i, layer in enumerate(config.layers) if layer.attention is not None]
    heads = [(layer, head) for layer in with_attention for head in (0, 1)]
    activations, patterns = looked(decoder, expected("ids"), heads)
    close = partial(np.testing.assert_allclose, rtol=1e-5)
    close(activations[1:, 0], expected("residual"), atol=1e-5 * np.abs(expected("residual")).max())
    close(activations[0, 0], expected("embedding"), atol=1e-6)
    close(patterns, expected("patterns").reshape(patterns.shape), atol=1e-5)
    if f"{family}/attention" in golden:
        close(activations[1:, 1], expected("attention"), atol=1e-5 * np.abs(expected("attention")).max())
        close(activations[1:, 2], expected("mlp"), atol=1e-5 * np.abs(expected("mlp")).max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_interventions_change_what_hooks_of_transformers_change(family: str, families: Path) -> None:
    golden = np.load(INSIDE)
    expected = partial(lambda name: golden[f"{family}/{name}"])
    decoder = loaded(families / family)
    both = (0, True, 7, 8, expected("patch")), (1, False, 5, 2**30, expected("vector"))
    activations, _ = looked(decoder, expected("ids"), [], interventions(decoder.config.hidden_size, *both))
    last = jnp.asarray(activations[-1, 0, -4:])
    logits = decoder.logits(last if decoder.norm is None else decoder.norm(last))
    np.testing.assert_allclose(logits, expected("logits"), rtol=1e-4, atol=1e-4 * np.abs(expected("logits")).max())
