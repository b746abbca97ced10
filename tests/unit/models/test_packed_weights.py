"""Weights in quantized blocks have the numbers of their tensors in every order, shard and group."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.forms import weight_form
from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.weights.load import load_decoder, load_weights
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError, UnsupportedModel
from rekindle.core.models.decoder import abstract_decoder, expected_shapes, transposed_names
from rekindle.core.models.shard import WHOLE, Shard
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.kinds import kind_of
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import tensors_of
from rekindle.settings.engine import Settings
from rekindle_kernels.api import operations_of
from rekindle_kernels.blocks import Array, Blocks, Tensor
from rekindle_kernels.storage import Activations, Stored
from rekindle_kernels.xla.stored import widen
from tests.families import families_by_tier
from tests.unit.logits import paged_logits

FLOAT32 = jnp.dtype("float32")
HERE = Place((jax.devices()[0],))
KINDS = ("Q8_0", "Q4_0", "Q5_1")


def in_blocks(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return tensors with matrices of whole groups in quantized blocks; kinds take turns, but not among experts."""
    parts = sorted({_part(name) for name in shapes})
    kinds = {name: KINDS[parts.index(_part(name)) % len(KINDS)] for name in shapes}
    return {
        name: _in_blocks(np.asarray(tensors[name]), kinds[name]) if _has_groups(shapes[name]) else tensors[name]
        for name in shapes
    }


def _part(name: str) -> str:
    return re.sub(r"\.\d+\.", ".", name)


def _has_groups(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and shape[-1] % 32 == 0


def _in_blocks(numbers: Array, kind: str) -> Blocks:
    library = gguf.GGMLQuantizationType[kind]
    return Blocks(gguf.quantize(np.ascontiguousarray(numbers, np.float32), library), kind_of(library))


def dequantized(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return tensors as plain numbers, blocks by way of the gguf library."""
    return {
        name: gguf.dequantize(np.asarray(each.data), gguf.GGMLQuantizationType[each.kind.name])
        if isinstance(each, Blocks)
        else np.asarray(each)
        for name, each in tensors.items()
    }


def packed_form(checkpoint: Checkpoint, activations: Activations = "int16") -> WeightForm:
    """Return the form with all blocks packed."""
    kinds, orders = kinds_in(checkpoint.tensors, checkpoint.tensors, transposed_names(checkpoint.config))
    return WeightForm(FLOAT32, kinds, activations, orders=orders)


def numbers_of(request: JoinedTensors, array: jax.Array, form: WeightForm) -> Array:
    """Return the numbers of a loaded weight of the portable implementation."""
    storage = request.storage(form)
    return np.asarray(array if storage is None else widen(Stored(array, storage), request.plain[-1]))


def checkpoint_of(family: str, families: Path) -> Checkpoint:
    """Return a tiny model with quantized blocks."""
    checkpoint = open_checkpoint(families / family)
    return replace(checkpoint, tensors=in_blocks(checkpoint.tensors, expected_shapes(checkpoint.config)))


FIRST = ("granite-hybrid-moe",)


@pytest.mark.parametrize(
    "shard",
    [*(pytest.param(each, marks=pytest.mark.wide) for each in (WHOLE, Shard(0, 2))), Shard(1, 2)],
    ids=["whole", "first", "second"],
)
@pytest.mark.parametrize("family", families_by_tier(FIRST))
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_packed_weights_have_the_numbers_of_their_tensors(family: str, shard: Shard, families: Path) -> None:
    checkpoint = checkpoint_of(family, families)
    form, plain = packed_form(checkpoint), dequantized(checkpoint.tensors)
    abstract = abstract_decoder(checkpoint.config, form, "xla", shard)
    packed = load_weights(checkpoint.config, checkpoint.tensors, form, shard=shard)
    expected = load_weights(checkpoint.config, plain, WeightForm(FLOAT32), shard=shard)
    requests = [abstract.requests[place] for place in abstract.places]
    for request, array, numbers in zip(requests, packed, expected, strict=True):
        actual = numbers_of(request, array, form)
        np.testing.assert_array_equal(actual, np.asarray(numbers), err_msg=str(request.shapes))
    assert family not in FIRST or sum(request.storage(form) is not None for request in requests) > 7


@pytest.mark.parametrize("family", ["qwen2", pytest.param("granite-hybrid-moe", marks=pytest.mark.wide)])
def test_logits_of_packed_weights_are_those_of_their_numbers(family: str, families: Path) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), FLOAT32):
        pytest.skip(reason)
    checkpoint = checkpoint_of(family, families)
    prompts = np.load(families / family / "golden.npz")["input_ids"][:1]

    def logits(tensors: Mapping[str, Any], form: WeightForm) -> Array:
        return paged_logits(load_decoder(checkpoint.config, tensors, form, "cpu"), prompts)[0]

    expected = logits(dequantized(checkpoint.tensors), WeightForm(FLOAT32))
    exact = logits(checkpoint.tensors, packed_form(checkpoint, "exact"))
    np.testing.assert_array_equal(exact, expected)
    close = logits(checkpoint.tensors, packed_form(checkpoint))
    assert 0 < np.abs(close - expected).max() <= 5e-4 * np.abs(expected).max()


FP8 = Path(__file__).parents[2] / "goldens" / "quantized" / "fp8-block"


def test_logits_of_packed_floats_of_8_bits_are_those_of_float32() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), FLOAT32):
        pytest.skip(reason)
    checkpoint, prompt = open_checkpoint(FP8), np.load(FP8 / "golden.npz")["prompt"]
    form = packed_form(checkpoint)
    assert dict.fromkeys(kind for _, kind in form.kinds) == {"float8:32": None}
    assert str(form) == "float8:32 with float32 activations"
    packed, expected = (
        paged_logits(load_decoder(checkpoint.config, checkpoint.tensors, each, "cpu"), [prompt])[0]
        for each in (form, WeightForm(FLOAT32))
    )
    np.testing.assert_array_equal(packed, expected)


@pytest.mark.parametrize("shard", [WHOLE, Shard(0, 2), Shard(1, 2)], ids=["whole", "first", "second"])
def test_packed_floats_of_8_bits_have_the_numbers_of_their_tensors(shard: Shard) -> None:
    checkpoint = open_checkpoint(FP8)
    form, wide = packed_form(checkpoint), WeightForm(FLOAT32)
    requests = abstract_decoder(checkpoint.config, form, "xla", shard).requests
    packed, expected = (_by_request(checkpoint, each, shard) for each in (form, wide))
    sizes = []
    for request, array, numbers in zip(requests, packed, expected, strict=True):
        np.testing.assert_array_equal(numbers_of(request, array, form), np.asarray(numbers))
        if request.storage(form) is not None:
            sizes.append((sum(each.nbytes for each in jax.tree.leaves(array)), numbers.nbytes))
    assert all(size == wide * (32 + 4) // (32 * 4) for size, wide in sizes), "a byte for each number, and scales"
    # Of the output of attention, a device of two has half of a group.
    assert len(sizes) == (4 if shard is WHOLE else 3)


def _by_request(checkpoint: Checkpoint, form: WeightForm, shard: Shard) -> list[Any]:
    """Return the weights of a model in the order of requests, an array or a tree each."""
    abstract = abstract_decoder(checkpoint.config, form, "xla", shard)
    arrays = load_weights(checkpoint.config, checkpoint.tensors, form, shard=shard)
    ordered = iter([arrays[abstract.places.index(place)] for place in range(len(arrays))])
    return [jax.tree.map(lambda _: next(ordered), request.form(form, "xla")) for request in abstract.requests]


def test_kinds_and_activations_are_in_all_keys(families: Path) -> None:
    checkpoint = checkpoint_of("qwen2", families)
    settings = (
        Settings(),
        Settings(weights="packed"),
        Settings(weights="packed", activations="int8"),
        Settings(weights="packed", activations="exact"),
    )
    plans = [Blueprint.of(checkpoint, each, HERE) for each in settings]
    other = replace(checkpoint, tensors={**checkpoint.tensors, **_one_of_another_kind(checkpoint.tensors)})
    plans.append(Blueprint.of(other, settings[1], HERE))
    assert len({plan.program_keys()(plan.largest_step).digest for plan in plans}) == len(plans)
    assert len({Identity.of(plan).pages_key().digest for plan in plans}) == len(plans)


def _one_of_another_kind(tensors: Mapping[str, Tensor]) -> dict[str, Blocks]:
    name = next(name for name, each in tensors.items() if isinstance(each, Blocks) and each.kind.name == "Q4_0")
    return {name: _in_blocks(np.zeros(tensors[name].shape), "Q5_0")}


def test_blocks_are_kept_on_request_and_by_default_for_gguf_files_on_cpus(families: Path) -> None:
    checkpoint = checkpoint_of("qwen2", families)
    gguf_file = replace(checkpoint, files=(Path("model.gguf"),))
    is_native = operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), FLOAT32) is None

    def is_packed(checkpoint: Checkpoint, settings: Settings) -> bool:
        return bool(weight_form(checkpoint, settings, FLOAT32, HERE).kinds)

    assert is_packed(gguf_file, Settings()) == is_native
    assert not is_packed(gguf_file, Settings(implementation="xla"))
    assert not is_packed(gguf_file, Settings(weights="dequantized"))
    assert not is_packed(gguf_file, Settings(weights=None))
    assert not is_packed(checkpoint, Settings())
    assert is_packed(checkpoint, Settings(weights="packed"))
    assert is_packed(checkpoint, Settings(weights="packed", implementation="xla"))
    with pytest.raises(ConfigError, match=r"keeps the quantized blocks .* has none of a supported kind: leave it out"):
        weight_form(open_checkpoint(families / "qwen2"), Settings(weights="packed"), FLOAT32, HERE)


def test_new_weights_must_be_in_the_blocks_of_the_open_ones(families: Path) -> None:
    checkpoint = checkpoint_of("qwen2", families)
    form = packed_form(checkpoint)
    assert set(tensors_of(checkpoint.tensors, checkpoint.config, form)) == set(checkpoint.tensors)
    with pytest.raises(UnsupportedModel, match=r'packed as Q\w+, and in the given weights it is not packed: .*"dequan'):
        tensors_of(dequantized(checkpoint.tensors), checkpoint.config, form)
    with pytest.raises(UnsupportedModel, match="packed as Q4_0, and in the given weights it is Q5_0"):
        tensors_of({**checkpoint.tensors, **_one_of_another_kind(checkpoint.tensors)}, checkpoint.config, form)
