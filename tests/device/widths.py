"""Models by their widths alone, with random weights: they are as fast as trained ones."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.families.registry import parse_config

LLAMA_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 128_001,
}
LLAMA_8B = LLAMA_1B | {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "head_dim": 128,
    "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
TINY = LLAMA_1B | {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": 1,
}


def config_of(widths: dict[str, Any]) -> ModelConfig:
    """Return the config of a model."""
    return parse_config(widths, "widths")


def random_arrays(shapes: Any, device: jax.Device) -> Any:
    """Return small random numbers for a tree of shapes, made on the device, one array after another."""
    leaves, form = jax.tree.flatten(shapes)
    with jax.default_device(device):
        arrays = [random_array(jax.random.key(place), each.shape, each.dtype) for place, each in enumerate(leaves)]
    return jax.tree.unflatten(form, arrays)


@partial(jax.jit, static_argnums=(1, 2))  # one program for all arrays of a shape
def random_array(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Return small random numbers."""
    if jnp.issubdtype(dtype, jnp.integer):
        wide = jnp.int8 if dtype.itemsize <= 1 else dtype
        return jax.random.randint(key, shape, -7, 8, wide).astype(dtype)
    return (0.02 * jax.random.normal(key, shape, jnp.float32)).astype(dtype)


def write_checkpoint(widths: dict[str, Any], directory: Path) -> Path:
    """Write a model of random bfloat16 weights as a Hugging Face directory; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(widths))
    noise = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(jnp.bfloat16)
    tensors = {name: np.resize(noise, shape) for name, shape in expected_shapes(config_of(widths)).items()}
    save_file(tensors, directory / "model.safetensors")
    return directory
