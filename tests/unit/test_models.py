"""The decoder gives the logits that the reference implementation gives, through the paged attention of the step."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rekindle.buckets import QUERY_BLOCK, Bucket
from rekindle.device.inputs import InputLayout
from rekindle.device.state import Pages, empty_pages, empty_slots
from rekindle.device.step import TickAttention
from rekindle.models.checkpoint.checkpoint import Checkpoint
from rekindle.models.checkpoint.open import open_checkpoint
from rekindle.models.decoder import Decoder
from rekindle.models.load import load_decoder

FAMILIES = ["llama-tied", "llama3-rope", "qwen2", "qwen3"]
Array = np.ndarray[Any, np.dtype[Any]]


def paged_logits(decoder: Decoder, ids: Array, page_size: int = 16) -> Array:
    """Compute the logits of every position of one prompt, (token, vocabulary), as one prefill chunk."""
    bucket = Bucket(-(-len(ids) // QUERY_BLOCK) * QUERY_BLOCK, 0)
    layout = InputLayout(bucket, 1, -(-len(ids) // page_size))
    packed = layout.padding()
    inputs = layout.unpack(packed)
    inputs.tokens[: len(ids)] = ids
    inputs.block_slot[:] = 0
    inputs.block_start[:] = np.arange(bucket.blocks) * QUERY_BLOCK
    inputs.block_page[:] = 1 + inputs.block_start // page_size
    num_pages = int(inputs.block_page[-1]) + 1
    pages = empty_pages(decoder.config, num_pages, page_size, decoder.embedding[...].dtype)
    slots = empty_slots(1, num_pages - 1, decoder.config.vocab_size)
    slots = replace(slots, page_table=slots.page_table.at[0].set(jnp.arange(1, num_pages)))
    on_device = layout.unpack(jnp.asarray(packed))
    positions = jnp.arange(bucket.prefill_tokens, dtype=jnp.int32).reshape(-1, QUERY_BLOCK)
    attend = TickAttention(on_device, slots, bucket, page_size, None)
    graph, state = nnx.split(decoder)

    @jax.jit
    def run(state: Any, pages: Pages) -> jax.Array:
        decoder = nnx.merge(graph, state)
        hidden, _ = decoder(on_device.tokens, positions.reshape(-1), pages, attend)
        return decoder.logits(hidden)

    return np.asarray(run(state, pages))[: len(ids)]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_reference_within_2e_4(family: str, families: Path) -> None:
    golden = np.load(families / family / "golden.npz")
    checkpoint = open_checkpoint(families / family)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    for ids, expected in zip(golden["input_ids"], golden["logits"], strict=True):
        logits = paged_logits(decoder, ids)[-len(expected) :]
        assert np.abs(logits - expected).max() <= 2e-4 * np.abs(expected).max()


def test_bfloat16_weights_keep_float32_logits_near_the_reference(families: Path) -> None:
    golden = np.load(families / "llama-tied" / "golden.npz")
    checkpoint = open_checkpoint(families / "llama-tied")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("bfloat16"))
    logits = paged_logits(decoder, golden["input_ids"][0])[-16:]
    assert logits.dtype == np.float32
    assert np.abs(logits - golden["logits"][0]).max() <= 5e-2 * np.abs(golden["logits"]).max()


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
    newer, older = (paged_logits(load_decoder(c.config, c.tensors, jnp.dtype("float32")), ids) for c in both)
    np.testing.assert_array_equal(newer, older)


def test_smollm2_log_probabilities_equal_the_reference_within_1e_3(
    smollm2: Checkpoint, smollm2_goldens: list[dict[str, Any]]
) -> None:
    decoder = load_decoder(smollm2.config, smollm2.tensors, jnp.dtype("float32"))
    for golden in smollm2_goldens[::2]:
        ids = np.asarray(golden["prompt_ids"])
        logprobs = np.asarray(jax.nn.log_softmax(paged_logits(decoder, ids), axis=-1))
        np.testing.assert_allclose(
            logprobs[-1, golden["first_top5_ids"]], golden["first_top5_logprobs"], atol=1e-3, rtol=0
        )
        of_prompt = logprobs[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(of_prompt, golden["prompt_logprobs"], atol=1e-3, rtol=0)


def test_a_page_size_changes_no_logit(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    ids = np.load(families / "qwen3" / "golden.npz")["input_ids"][0]
    first = paged_logits(decoder, ids, 16)
    for page_size in (32, 64, 128):
        np.testing.assert_allclose(paged_logits(decoder, ids, page_size), first, rtol=1e-4, atol=1e-5)
