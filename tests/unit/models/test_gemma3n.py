"""Gemma 3n: its config as published, inside of a wrapper; its sparse activations on several devices."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.core.errors import CheckpointError
from rekindle.core.models.config import FeedForwardConfig, StreamsConfig
from rekindle.core.models.feed_forward.dense import excess
from rekindle.core.models.shard import TENSOR, WHOLE, Shard
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.registry import parse_config

E2B = {"model_type": "gemma3n_text", "num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10}
OUTER = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "vision_config": {"depth": 1}}


@pytest.mark.filterwarnings("error")
def test_what_a_published_config_spells_out_is_the_default() -> None:
    pattern = ["sliding_attention"] * 4 + ["full_attention"]
    spelled = E2B | {
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_lr_multiplier": 1.0,
        "altup_num_inputs": 4,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 256,
        "intermediate_size": [8192] * 30,
        "laurel_rank": 64,
        "layer_types": pattern * 6,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262_144,
    }
    config = parse_config(OUTER | {"text_config": E2B}, "config.json")
    assert config == parse_config(OUTER | {"text_config": spelled}, "config.json")
    assert config.streams == StreamsConfig(4, 0, scaled=True)
    cutoffs = [
        layer.feed_forward.cutoff for layer in config.layers if isinstance(layer.feed_forward, FeedForwardConfig)
    ]
    assert cutoffs == [float(np.float32(1.6448536))] * 10 + [None] * 20
    assert [layer.pages_of for layer in config.layers[18:26]] == [None, None, 18, 18, 18, 18, 19, 18]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"altup_active_idx": 4}, r"altup_active_idx must be one of 4 streams, counted from 0, got 4"),
        ({"intermediate_size": [8192] * 29}, r"intermediate_size must be a list of 30 numbers"),
        ({"activation_sparsity_pattern": 0.95}, r"activation_sparsity_pattern must be a list of 30 numbers"),
        ({"activation_sparsity_pattern": [1.0] * 30}, r"must have numbers from 0 to below 1"),
    ],
)
def test_a_config_that_is_wrong_says_why(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CheckpointError, match=expected):
        parse_config(OUTER | {"text_config": E2B | changes}, "config.json")


@pytest.mark.filterwarnings("error")
def test_the_text_model_of_a_wrapper_opens_without_its_towers(families: Path, tmp_path: Path) -> None:
    golden = families / "gemma3n"
    config, tensors = json.loads((golden / "config.json").read_text()), load_file(golden / "model.safetensors")
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(OUTER | {"text_config": config}))
    stored = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    unused = ("vision_tower.x", "audio_tower.x", "embed_vision.x", "language_model.layers.4.self_attn.k_proj")
    towers = {f"model.{name}.weight": np.zeros((2, 2), np.float32) for name in unused}
    save_file(stored | towers, tmp_path / "model.safetensors")
    checkpoint, expected = open_checkpoint(tmp_path), open_checkpoint(golden)
    assert checkpoint.config == expected.config
    assert set(checkpoint.tensors) == set(expected.tensors)
    np.testing.assert_array_equal(checkpoint.tensors["model.norm.weight"], tensors["model.norm.weight"])


def test_padding_of_a_devices_features_is_no_part_of_their_mean() -> None:
    x = np.random.default_rng(3).normal(1, 2, (4, 5)).astype(np.float32)
    expected = np.maximum(x - (x.mean(1, keepdims=True) + 0.25 * x.std(1, keepdims=True)), 0)
    np.testing.assert_allclose(excess(jnp.asarray(x), 0.25, 5, WHOLE), expected, rtol=1e-5, atol=1e-6)
    of_devices = jnp.stack([jnp.asarray(x[:, :3]), jnp.asarray(np.c_[x[:, 3:], x[:, :1]])])  # padded by the first
    parts = jax.vmap(lambda part: excess(part, 0.25, 5, Shard(0, 2)), axis_name=TENSOR)(of_devices)
    np.testing.assert_allclose(np.concatenate(list(parts), 1)[:, :5], expected, rtol=1e-5, atol=1e-6)
