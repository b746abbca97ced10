"""Weights on the device are the checkpoint's tensors, joined and cast, and cost no compilation."""

import threading
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rekindle.errors import CheckpointError
from rekindle.models.attention import Attention
from rekindle.models.checkpoint.checkpoint import Checkpoint, LazyTensors
from rekindle.models.checkpoint.open import open_checkpoint
from rekindle.models.decoder import Layer
from rekindle.models.load import load_decoder

FAMILIES = ["llama-tied", "llama3-rope", "qwen2", "qwen3"]
FLOAT32 = jnp.dtype("float32")
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_compiles_nothing(family: str, dtype: str, families: Path, compilations: list[str]) -> None:
    checkpoint = open_checkpoint(families / family)
    load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype(dtype))
    assert compilations == []
    jnp.ones(3).astype(dtype)
    assert compilations != [], "compilations are told"


def expected(checkpoint: Checkpoint, dtype: str, *names: str) -> Array:
    """Join tensors and cast them as JAX does it; vectors stay as exact as they are."""
    joined = jnp.concatenate([jnp.asarray(checkpoint.tensors[name]) for name in names])
    return np.asarray(joined.astype(dtype if joined.ndim > 1 else "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", [*FAMILIES, "smollm2"])
def test_weights_are_the_tensors_to_the_bit(
    model: str, dtype: str, families: Path, request: pytest.FixtureRequest
) -> None:
    opened = request.getfixturevalue("smollm2") if model == "smollm2" else open_checkpoint(families / model)
    decoder = load_decoder(opened.config, opened.tensors, jnp.dtype(dtype))
    place = 1
    layer, prefix = cast(Layer, getattr(decoder, f"layer_{place}")), f"model.layers.{place}"
    assert layer.before_attention is not None
    assert isinstance(layer.attention, Attention)
    attention = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
    cases: list[tuple[Any, list[str]]] = [
        (decoder.embedding, ["model.embed_tokens.weight"]),
        (decoder.norm.weight, ["model.norm.weight"]),
        (layer.before_attention.weight, [f"{prefix}.input_layernorm.weight"]),
        (layer.attention.qkv.weight, [f"{name}.weight" for name in attention]),
        (layer.attention.out.weight, [f"{prefix}.self_attn.o_proj.weight"]),
        (layer.mlp.gate_up.weight, [f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"]),
        (layer.mlp.down.weight, [f"{prefix}.mlp.down_proj.weight"]),
    ]
    if opened.config.attention.qkv_bias:
        cases.append((layer.attention.qkv.bias, [f"{name}.bias" for name in attention]))
    for weight, names in cases:
        wanted = expected(opened, dtype, *names)
        assert (weight[...].dtype, weight[...].shape) == (wanted.dtype, wanted.shape)
        assert np.asarray(weight[...]).tobytes() == wanted.tobytes(), names


def aligned(tensor: Array) -> Array:
    """Copy a tensor to aligned memory, which the CPU backend could take without a copy."""
    memory = np.empty(tensor.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
    copy[...] = tensor
    return copy


def test_weights_do_not_change_with_what_they_were_read_from(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    given = {name: aligned(tensor) for name, tensor in checkpoint.tensors.items()}
    decoder = load_decoder(checkpoint.config, given, FLOAT32)
    for array in given.values():
        array.fill(7.0)
    again = load_decoder(checkpoint.config, checkpoint.tensors, FLOAT32)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(decoder), nnx.state(again))


def test_the_calling_thread_is_told_of_every_tensor(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    told: list[tuple[int, int]] = []

    def loaded(tensors: int) -> None:
        told.append((tensors, threading.get_ident()))

    load_decoder(checkpoint.config, checkpoint.tensors, FLOAT32, loaded)
    assert sum(tensors for tensors, _ in told) == len(checkpoint.tensors)
    assert {thread for _, thread in told} == {threading.get_ident()}


def test_a_tensor_that_cannot_be_read_ends_the_loading(families: Path) -> None:
    def broken(name: str) -> Array:
        raise CheckpointError(f"{name} is broken")

    checkpoint = open_checkpoint(families / "qwen3")
    tensors = LazyTensors({name: partial(broken, name) for name in checkpoint.tensors})
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight is broken"):
        load_decoder(checkpoint.config, tensors, FLOAT32)
