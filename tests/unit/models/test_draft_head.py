"""The draft head against a reference: numpy before the layer, and the layer as that of a model of its own."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.config import Norm
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.sequence import SequenceMixer, empty_memory
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.draft_heads import with_draft_head
from tests.unit.logits import paged_logits

WIDE = ("deepseek-v3", "glm4-moe", "glm4-moe-lite", "qwen3_5-moe", "qwen3-next")
FAMILIES = ["qwen3_5", *(pytest.param(name, marks=pytest.mark.wide) for name in WIDE)]
FLOAT32 = jnp.dtype("float32")
TOLERANCE = 3e-5


def normalised(x: np.ndarray, weight: np.ndarray, norm: Norm) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * (norm.offset + weight))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_the_definition(family: str, families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(with_draft_head(families / family, tmp_path / "model")).with_draft_head()
    config, stored = checkpoint.config, load_file(tmp_path / "model" / "model.safetensors")
    decoder = load_decoder(config, checkpoint.tensors, FLOAT32)
    ids = np.load(families / family / "golden.npz")["input_ids"][0]
    tokens, following, positions = jnp.asarray(ids[:-1]), ids[1:], jnp.arange(len(ids) - 1, dtype=jnp.int32)
    mixer, lengths = SequenceMixer(), jnp.full(len(ids) - 1, len(ids) - 1, jnp.int32)

    @jax.jit
    def run() -> tuple[jax.Array, jax.Array, jax.Array]:
        hidden, memory = decoder(tokens, positions, empty_memory(config), mixer)
        x, memory = decoder.draft(jnp.asarray(following), positions, hidden, memory, mixer, lengths)
        assert len(memory.pages) == len(config.attentions) + 1
        return hidden, decoder.logits(hidden), decoder.logits(x)

    hidden, of_layers, logits = map(np.asarray, run())

    head, norm = config.draft_head, config.norm
    assert head is not None
    table = stored["model.embed_tokens.weight"]
    joined = np.concatenate(
        [
            normalised(table[following], stored[f"{head.embedding_norm}.weight"], norm),
            normalised(hidden, stored[f"{head.hidden_norm}.weight"], norm),
        ],
        axis=1,
    )
    inputs = joined @ stored[f"{head.join}.weight"].T
    alone = replace(config, layers=config.layers[-1:], draft_head=None, tied_embeddings=False)
    tensors = {
        name.replace(head.prefix, "model.layers.0"): array for name, array in stored.items() if head.prefix in name
    }
    tensors["model.embed_tokens.weight"] = np.concatenate([inputs, np.zeros_like(table)])[: len(table)]
    tensors["model.norm.weight"] = stored[f"{head.norm}.weight"]
    tensors["lm_head.weight"] = table if config.tied_embeddings else stored["lm_head.weight"]
    reference = load_decoder(alone, {name: tensors[name] for name in expected_shapes(alone)}, FLOAT32)
    (expected,) = paged_logits(reference, [np.arange(len(inputs))])
    assert np.abs(logits - expected).max() <= TOLERANCE * np.abs(expected).max()
    assert np.abs(logits - of_layers).max() > 0.1 * np.abs(expected).max()


def test_files_without_all_of_a_head_open_without_it(families: Path, tmp_path: Path) -> None:
    bare = open_checkpoint(families / "glm4-moe")
    assert bare.draft_head is None
    assert bare.with_draft_head() is bare
    whole = open_checkpoint(with_draft_head(families / "glm4-moe", tmp_path / "model"))
    assert set(whole.tensors) == set(bare.tensors)
    added = set(whole.with_draft_head().tensors) - set(bare.tensors)
    assert {name.removeprefix("model.layers.2.") for name in added} >= {"eh_proj.weight", "enorm.weight"}


@pytest.mark.parametrize("change", [{}, {"mtp_num_hidden_layers": 2}, {"mtp_use_dedicated_embeddings": True}], ids=str)
def test_the_head_beside_a_wrapped_text_model_is_found_if_it_is_supported(
    change: dict[str, object], families: Path, tmp_path: Path
) -> None:
    model = with_draft_head(families / "qwen3_5", tmp_path / "model")
    text, tensors = json.loads((model / "config.json").read_text()), load_file(model / "model.safetensors")
    wrapper = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    (model / "config.json").write_text(json.dumps({**wrapper, "text_config": {**text, **change}}))
    names = {name: name.replace("model.", "model.language_model.") for name in tensors}
    save_file({names[name]: value for name, value in tensors.items()}, model / "model.safetensors")
    bare = open_checkpoint(model)
    added = set(bare.with_draft_head().tensors) - set(bare.tensors)
    assert ("mtp.layers.0.self_attn.q_proj.weight" in added) == (not change)
    assert len(bare.tensors) == len(open_checkpoint(families / "qwen3_5").tensors)
