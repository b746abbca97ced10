"""Weights given as arrays of JAX are joined on their device, to the same bits as from a file."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.loading.joining import join
from rekindle.assembly.weights.load import load_weights
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import tensors_of

FAMILIES = ["gpt2", "phi3", "qwen2", "mixtral", "gpt-oss", "granitemoe", "llama4", "deepseek-v3"]
"""Families with joined, transposed, biased and grouped tensors, and those of experts one by one or together."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama-tied", *(pytest.param(name, marks=pytest.mark.wide) for name in FAMILIES)])
def test_weights_of_a_device_are_joined_there_to_the_same_bits(family: str, dtype: str, families: Path) -> None:
    checkpoint = open_checkpoint(families / family)
    arrays: dict[str, Any] = {name: jnp.asarray(tensor) for name, tensor in checkpoint.tensors.items()}
    joined: list[JoinedTensors] = []

    def record(request: JoinedTensors, parts: Sequence[jax.Array], dtype: jnp.dtype) -> jax.Array:
        joined.append(request)
        return join(request, parts, dtype)

    form = WeightForm(jnp.dtype(dtype))
    for shard in (Shard(), Shard(1, 2)):
        load = partial(load_weights, checkpoint.config, form=form, implementation="xla", shard=shard)
        joined.clear()
        for ours, theirs in zip(load(arrays, join=record), load(checkpoint.tensors), strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
        assert len(joined) == len(abstract_decoder(checkpoint.config, form, "xla", shard).requests)


def test_weights_share_no_memory_with_arrays_that_their_owner_may_donate(families: Path) -> None:
    checkpoint = open_checkpoint(families / "llama-tied")
    arrays: dict[str, Any] = {name: jnp.asarray(np.asarray(tensor)) for name, tensor in checkpoint.tensors.items()}
    arrays = {name: jnp.copy(array) for name, array in arrays.items()}
    places = {array.unsafe_buffer_pointer() for array in arrays.values()}
    form = WeightForm(jnp.dtype("float32"))
    tensors = tensors_of(arrays, checkpoint.config, form)
    assert all(tensors[name] is arrays[name] for name in tensors), "they are not copied to the host"
    weights = load_weights(checkpoint.config, tensors, form, join=join)
    assert not places & {array.unsafe_buffer_pointer() for array in weights}
    before = [np.asarray(array).copy() for array in weights]
    for array in arrays.values():
        array.delete()
    for array, copy in zip(weights, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_second_update_compiles_nothing(families: Path, compilations: list[str]) -> None:
    checkpoint = open_checkpoint(families / "llama-tied")
    arrays: dict[str, Any] = {name: jnp.asarray(np.asarray(tensor)) for name, tensor in checkpoint.tensors.items()}
    load = partial(load_weights, checkpoint.config, arrays, WeightForm(jnp.dtype("float32")), join=join)
    load()
    compilations.clear()
    load()
    assert compilations == []
