"""Layers with a state: several devices agree with one, and each has a share of the states."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.weights.load import load_decoder, load_weights
from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.page_form import StateForm
from rekindle.core.device.place import Place
from rekindle.core.device.state import empty_pages, empty_slots
from rekindle.core.device.tick_mixer import TickMixer
from rekindle.core.models.config import DeltaNet, Mamba2, Norm, ShortConvolution
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.mixing import LayerMemory
from rekindle.core.models.shard import TENSOR, Shard
from rekindle.core.models.states.group_norm import members_of
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.results.facts.traffic import Wire
from tests.unit.logits import KNOWN, logits_within

Array = np.ndarray[Any, np.dtype[Any]]
FLOAT32 = jnp.dtype("float32")


def logits_of_devices(directory: Path, devices: int, ids: Array) -> Array:
    """Compute the logits of a prompt by the shards of a model, with their sums over an axis of one device."""
    checkpoint = open_checkpoint(directory)
    config = checkpoint.config
    shards = [Shard(rank, devices) for rank in range(devices)]
    weights = [load_weights(config, checkpoint.tensors, WeightForm(FLOAT32), shard=shard) for shard in shards]
    abstract = abstract_decoder(config, WeightForm(FLOAT32), "xla", shards[0])
    blocks = -(-len(ids) // QUERY_BLOCK)
    bucket = Bucket(blocks * QUERY_BLOCK, 0)
    layout = InputLayout(bucket, 1, blocks)
    packed = layout.padding()
    inputs = layout.unpack(packed)
    inputs.tokens[: len(ids)] = ids
    inputs.block_slot[:], inputs.block_start[:] = 0, np.arange(blocks) * QUERY_BLOCK
    inputs.block_page[:] = 1 + np.arange(blocks)
    inputs.block_count[:] = np.minimum(len(ids) - inputs.block_start, QUERY_BLOCK)
    on_device = layout.unpack(jnp.asarray(packed))

    def of_device(weights: list[jax.Array]) -> jax.Array:
        slots = empty_slots(1, blocks, config.vocab_size, config.states(devices))
        slots = replace(slots, page_table=slots.page_table.at[0].set(jnp.arange(1, 1 + blocks)))
        pages = empty_pages(config, 1 + blocks, QUERY_BLOCK, FLOAT32, "xla", devices)
        mixer = TickMixer(on_device, slots, bucket, QUERY_BLOCK, jnp.zeros(0, jnp.int32), "xla")
        decoder = abstract.with_weights(weights)
        positions = jnp.arange(bucket.prefill_tokens, dtype=jnp.int32)
        hidden, _ = decoder(on_device.tokens, positions, LayerMemory(pages, slots.states), mixer)
        return decoder.logits(hidden)

    stacked = [jnp.stack(each) for each in zip(*weights, strict=True)]
    return np.asarray(jax.jit(jax.vmap(of_device, axis_name=TENSOR))(stacked))[0, : len(ids)]


@pytest.mark.parametrize(
    ("family", "devices"),
    [
        pytest.param("falcon-h1-norm", 3, id="groups of heads cut", marks=pytest.mark.wide),
        pytest.param("lfm2", 3, id="channels with padding"),
        pytest.param("qwen3-next", 3, id="rows by key head, key heads repeated", marks=pytest.mark.wide),
        pytest.param("qwen3_5", 2, id="key heads divided", marks=pytest.mark.wide),
        pytest.param("granite-hybrid", 2, id="seven heads of one group", marks=pytest.mark.wide),
        pytest.param("granite-hybrid-moe", 2, id="biases", marks=pytest.mark.wide),
        pytest.param("nemotron-h-moe", 4, id="experts over a latent", marks=pytest.mark.wide),
        pytest.param("bamba", 4, id="more devices than KV heads", marks=pytest.mark.wide),
    ],
)
def test_several_devices_give_the_logits(family: str, devices: int, families: Path) -> None:
    golden = np.load(families / family / "golden.npz")
    logits = logits_of_devices(families / family, devices, golden["input_ids"][0])[-16:]
    expected = golden["logits"][0]
    checkpoint = open_checkpoint(families / family)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, FLOAT32)
    _, bound = logits_within(decoder, golden["input_ids"][:1], KNOWN)
    assert np.abs(logits - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.parametrize(
    "state",
    [
        ShortConvolution(10, 3),
        DeltaNet(32, 16, 128, 64, 4, Norm(1e-6)),
        Mamba2(heads=24, groups=8, head_size=64, state_size=128, taps=4),
    ],
)
@pytest.mark.parametrize("devices", [1, 2, 3, 8, 16])
def test_states_of_devices_together_hold_the_whole(state: ShortConvolution | DeltaNet | Mamba2, devices: int) -> None:
    whole, share = state.shapes(), state.shapes(devices)
    assert [len(each) for each in share] == [len(each) for each in whole]
    for one, all_ in zip(share, whole, strict=True):
        assert math.prod(one) * devices >= math.prod(all_)
        assert math.prod(one) <= math.prod(all_)


def test_every_head_is_in_one_group_on_one_device() -> None:
    config = Mamba2(heads=6, groups=2, head_size=4, state_size=8, taps=4)
    members = members_of(config, 4)
    np.testing.assert_array_equal(members.sum((0, 1)), [3, 3])
    np.testing.assert_array_equal(members.sum(2).max(1), np.ones(4))


def test_a_cut_norm_is_one_more_sum(families: Path) -> None:
    config = open_checkpoint(families / "falcon-h1-norm").config
    two, four = Wire.of(config, 2), Wire.of(config, 4)
    assert (four.sums - two.sums, four.sum_elements - two.sum_elements) == (config.num_layers, 2 * config.num_layers)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("family", ["falcon-h1-norm", "lfm2", "qwen3-next"])
def test_a_copy_of_states_is_the_same_on_every_mesh(family: str, devices: int, families: Path) -> None:
    """Cut whole states by the devices' own indices, and join the parts again."""
    config = open_checkpoint(families / family).config
    place = Place((jax.devices()[0],) * devices)
    form, one = StateForm.of(config, place), StateForm.of(config, Place((jax.devices()[0],)))
    assert all(array.units is None for array in one.arrays)
    copy = jnp.arange(form.copy.shape[-1], dtype=jnp.float32)[None, None]
    content = form.split(copy)
    whole = [shape for state in config.states(devices) for shape in state]
    for part, array, shape in zip(content, form.arrays, whole, strict=True):
        assert part.shape[array.axis] == devices * shape[array.axis]
    np.testing.assert_array_equal(form.join(content), copy)
    np.testing.assert_array_equal(one.join(one.split(copy)), copy)
