"""The decoder gives the logits of the reference implementation, through the paged attention of the step."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.weights.load import load_decoder
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.families import MODELS
from tests.unit.logits import KNOWN, logits_within, paged_logits

CONDITION = 2e-4
"""The largest relative change of a golden's logits by rounding; a golden with a larger one proves too little."""
FEW = ("deepseek-v3", "gemma2", "gpt-oss", "gpt2", "llama-tied", "qwen3-next")
"""Families with most kinds of attention, positions, norms, experts and states."""


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in FEW else pytest.mark.wide) for family in MODELS]
)
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_logits_are_those_of_the_reference_within_rounding(family: str, families: Path) -> None:
    golden = np.load(families / family / "golden.npz")
    checkpoint = open_checkpoint(families / family)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    both, bound = logits_within(decoder, golden["input_ids"], KNOWN)
    assert bound <= CONDITION, "these prompts amplify rounding: take others for this golden"
    for logits, expected in zip(both, golden["logits"], strict=True):
        assert np.abs(logits - expected).max() <= bound * np.abs(expected).max()


def test_a_head_of_its_own_gives_the_logits_although_the_config_says_tied(families: Path) -> None:
    golden = np.load(families / "mistral-own-head" / "golden.npz")
    with pytest.warns(RuntimeWarning, match="separate head, which is used"):
        checkpoint = open_checkpoint(families / "mistral-own-head")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    (logits,), bound = logits_within(decoder, golden["input_ids"][:1], KNOWN)
    assert np.abs(logits - golden["logits"][0]).max() <= bound * np.abs(golden["logits"]).max()


def test_bfloat16_weights_keep_float32_logits_near_the_reference(families: Path) -> None:
    golden = np.load(families / "llama-tied" / "golden.npz")
    checkpoint = open_checkpoint(families / "llama-tied")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("bfloat16"))
    (whole,) = paged_logits(decoder, golden["input_ids"][:1])
    logits = whole[-16:]
    assert logits.dtype == np.float32
    assert np.abs(logits - golden["logits"][0]).max() <= 5e-2 * np.abs(golden["logits"]).max()


@pytest.mark.parametrize(
    "family", ["gpt-oss", *(pytest.param(name, marks=pytest.mark.wide) for name in ("gemma2", "gemma3n", "olmo3"))]
)
def test_int8_pages_keep_logits_near_the_reference(family: str, families: Path) -> None:
    """Check sinks, windows, soft caps, and layers over the pages of another one, with heads of 8 to 16 numbers."""
    golden = np.load(families / family / "golden.npz")
    checkpoint = open_checkpoint(families / family)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    for logits, expected in zip(
        paged_logits(decoder, golden["input_ids"], kv_dtype="int8"), golden["logits"], strict=True
    ):
        error = np.abs(logits[-len(expected) :] - expected).max() / np.abs(expected).max()
        assert 1e-4 < error < 5e-2, "rounded once"


def test_the_older_spelling_of_rope_parameters_gives_the_same_logits(families: Path, tmp_path: Path) -> None:
    source = families / "llama3-rope"
    config = json.loads((source / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    ids = np.load(source / "golden.npz")["input_ids"][0]
    both = [open_checkpoint(directory) for directory in (source, tmp_path)]
    newer, older = (paged_logits(load_decoder(c.config, c.tensors, jnp.dtype("float32")), [ids]) for c in both)
    np.testing.assert_array_equal(newer, older)


@pytest.mark.wide
def test_smollm2_log_probabilities_equal_the_reference_within_1e_3(
    smollm2: Checkpoint, smollm2_goldens: list[dict[str, Any]]
) -> None:
    decoder = load_decoder(smollm2.config, smollm2.tensors, jnp.dtype("float32"))
    prompts = [np.asarray(golden["prompt_ids"]) for golden in smollm2_goldens]
    for golden, ids, logits in zip(smollm2_goldens, prompts, paged_logits(decoder, prompts), strict=True):
        logprobs = np.asarray(jax.nn.log_softmax(logits, axis=-1))
        np.testing.assert_allclose(
            logprobs[-1, golden["first_top5_ids"]], golden["first_top5_logprobs"], atol=1e-3, rtol=0
        )
        of_prompt = logprobs[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(of_prompt, golden["prompt_logprobs"], atol=1e-3, rtol=0)


def test_a_page_size_changes_no_logit(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    ids = np.load(families / "qwen3" / "golden.npz")["input_ids"][:1]
    (first,), bound = logits_within(decoder, ids)
    for page_size in (32, 128):
        assert np.abs(paged_logits(decoder, ids, page_size)[0] - first).max() <= bound * np.abs(first).max()
