"""A tiny Jina BERT with random weights, and its vectors in float64, from the equations of its published code."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, np.dtype[Any]]
HIDDEN, HEADS, INNER, LAYERS, VOCABULARY = 48, 6, 40, 2, 323
TOKENIZER = Path(__file__).parent / "goldens" / "encoders" / "bert-mean"
SLOPES = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
"""Slopes of six heads: those of four, and the first and third of eight."""


def write(path: Path) -> dict[str, Array]:
    """Write the model as a directory of sentence-transformers, and return its tensors."""
    shutil.copytree(TOKENIZER, path)
    config = {
        "architectures": ["JinaBertForMaskedLM"],
        "model_type": "bert",
        "attention_probs_dropout_prob": 0.0,
        "emb_pooler": "mean",
        "feed_forward_type": "geglu",
        "hidden_act": "gelu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 256,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 0,
        "position_embedding_type": "alibi",
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY,
    }
    (path / "config.json").write_text(json.dumps(config))
    tensors = {name: random(name, *shape) for name, shape in shapes().items()}
    save_file(tensors, path / "model.safetensors")
    return tensors


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(LAYERS):
        own = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found |= {f"{own}.attention.{name}.weight": (HIDDEN, HIDDEN), f"{own}.attention.{name}.bias": (HIDDEN,)}
        found |= norm(f"{own}.attention.output.LayerNorm") | norm(f"{own}.mlp.layernorm")
        found |= {f"{own}.mlp.gated_layers.weight": (2 * INNER, HIDDEN)}
        found |= {f"{own}.mlp.wo.weight": (HIDDEN, INNER), f"{own}.mlp.wo.bias": (HIDDEN,)}
    return found


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


def random(name: str, *shape: int) -> Array:
    """Return numbers that change the result: weights of norms are near 1."""
    rng = np.random.default_rng(sum(map(ord, name)))
    numbers = rng.standard_normal(shape) * (0.2 if len(shape) == 1 else 1 / math.sqrt(shape[-1]))
    is_norm = name.lower().endswith("norm.weight")
    return (numbers + is_norm).astype(np.float32)


def vector(tensors: dict[str, Array], ids: list[int]) -> Array:
    """Return the vector of tokens: the mean of their last states, of length 1."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = wide["embeddings.word_embeddings.weight"][ids] + wide["embeddings.token_type_embeddings.weight"][0]
    x = normalised(x, wide, "embeddings.LayerNorm")
    places = np.arange(len(ids))
    bias = -np.array(SLOPES)[:, None, None] * np.abs(places[:, None] - places)
    for layer in range(LAYERS):
        own = f"encoder.layer.{layer}"
        q, k, v = (
            linear(x, wide, f"{own}.attention.self.{name}").reshape(len(ids), HEADS, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(HIDDEN // HEADS) + bias
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), HIDDEN)
        x = normalised(
            x + linear(mixed, wide, f"{own}.attention.output.dense"), wide, f"{own}.attention.output.LayerNorm"
        )
        gated, other = np.split(x @ wide[f"{own}.mlp.gated_layers.weight"].T, 2, axis=1)
        activated = 0.5 * gated * (1 + np.vectorize(math.erf)(gated / math.sqrt(2)))
        x = normalised(x + linear(activated * other, wide, f"{own}.mlp.wo"), wide, f"{own}.mlp.layernorm")
    mean = x.mean(0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit


def linear(x: Array, tensors: dict[str, Array], name: str) -> Array:
    result: Array = x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
    return result


def normalised(x: Array, tensors: dict[str, Array], name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-12)
    result: Array = centred / deviation * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
    return result
