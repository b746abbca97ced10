"""The decoder gives the logits that the reference implementation gives, through the paged attention of the step."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.checkpoints.checkpoint import Checkpoint
from rekindle.core.checkpoints.open import open_checkpoint
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.state import Pages, empty_pages, empty_slots
from rekindle.core.device.tick_mixer import TickMixer
from rekindle.core.models.config import DeltaNet, ModelConfig
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.layers import Delta
from rekindle.core.models.loading.load import load_decoder
from rekindle.core.models.mixing import Memory
from rekindle_kernels.api import choose_for_all
from tests.families import COVERING, MODELS

Array = np.ndarray[Any, np.dtype[Any]]


def paged_logits(
    decoder: Decoder,
    prompts: Sequence[Array],
    page_size: int = 16,
    kv_dtype: str | None = None,
    adapt: Callable[[Decoder, int], Delta | None] = lambda decoder, rows: None,
) -> list[Array]:
    """Compute the logits of every position of each prompt, (token, vocabulary), as one prefill chunk.

    All are computed by one program, which has room for the longest. `adapt` may change the decoder of a trace, for so
    many rows, and returns the summand of its head.
    """
    blocks = -(-max(map(len, prompts)) // QUERY_BLOCK)
    bucket = Bucket(blocks * QUERY_BLOCK, 0)
    num_pages = 1 + -(-bucket.prefill_tokens // page_size)
    layout = InputLayout(bucket, 1, num_pages - 1)
    dtype = jnp.dtype(kv_dtype or decoder.embedding.dtype)
    implementation = choose_for_all("cpu", decoder.config.pools(num_pages, page_size), dtype)
    pages = empty_pages(decoder.config, num_pages, page_size, dtype, implementation)
    slots = empty_slots(1, num_pages - 1, decoder.config.vocab_size, decoder.config.states())
    slots = replace(slots, page_table=slots.page_table.at[0].set(jnp.arange(1, num_pages)))
    positions = jnp.arange(bucket.prefill_tokens, dtype=jnp.int32)
    graph, state = nnx.split(decoder)

    @jax.jit
    def run(state: Any, pages: Pages, packed: jax.Array) -> jax.Array:
        decoder, inputs = nnx.merge(graph, state), layout.unpack(packed)
        delta = adapt(decoder, bucket.prefill_tokens)
        mixer = TickMixer(inputs, slots, bucket, page_size, implementation)
        hidden, _ = decoder(inputs.tokens, positions, Memory(pages, slots.states), mixer)
        return decoder.logits(hidden, delta)

    def packed(ids: Array) -> jax.Array:
        used, padding = -(-len(ids) // QUERY_BLOCK), layout.padding()
        inputs = layout.unpack(padding)
        inputs.tokens[: len(ids)] = ids
        inputs.block_slot[:used] = 0
        inputs.block_start[:used] = np.arange(used) * QUERY_BLOCK
        inputs.block_count[:used] = np.minimum(QUERY_BLOCK, len(ids) - inputs.block_start[:used])
        inputs.block_page[:used] = 1 + inputs.block_start[:used] // page_size
        return jnp.asarray(padding)

    return [np.asarray(run(state, pages, packed(ids)))[: len(ids)] for ids in prompts]


def tolerance(config: ModelConfig) -> float:
    """Return the largest error of a family's logits, of the largest logit.

    Delta nets amplify rounding: the reference itself differs by 1.2e-5 between a whole prompt and single steps.
    """
    return 5e-5 if any(isinstance(layer.state, DeltaNet) for layer in config.layers) else 1e-5


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in COVERING else pytest.mark.wide) for family in MODELS]
)
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_logits_equal_the_reference_within_1e_5(family: str, families: Path) -> None:
    golden = np.load(families / family / "golden.npz")
    checkpoint = open_checkpoint(families / family)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    for logits, expected in zip(paged_logits(decoder, golden["input_ids"]), golden["logits"], strict=True):
        error = np.abs(logits[-len(expected) :] - expected).max()
        assert error <= tolerance(checkpoint.config) * np.abs(expected).max()


def test_a_head_of_its_own_gives_the_logits_although_the_config_says_tied(families: Path) -> None:
    golden = np.load(families / "mistral-own-head" / "golden.npz")
    with pytest.warns(RuntimeWarning, match="separate head, which is used"):
        checkpoint = open_checkpoint(families / "mistral-own-head")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    (whole,) = paged_logits(decoder, golden["input_ids"][:1])
    assert np.abs(whole[-16:] - golden["logits"][0]).max() <= 1e-5 * np.abs(golden["logits"]).max()


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
    """Check sinks, windows, soft caps, and layers that read the pages of another one, with heads of 8 to 16 numbers."""
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
    (first,) = paged_logits(decoder, ids, 16)
    for page_size in (32, 128):
        np.testing.assert_allclose(paged_logits(decoder, ids, page_size)[0], first, rtol=1e-4, atol=1e-5)
