"""Weights quantized at load are the codes of their numbers, in every order, shard and group."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.forms import weight_form
from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.loading.joining import join
from rekindle.assembly.loading.kinds import large_groups, quantized_kinds
from rekindle.assembly.weights import load
from rekindle.assembly.weights.load import load_decoder, load_weights
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError
from rekindle.core.models.decoder import AbstractDecoder, abstract_decoder, expected_shapes
from rekindle.core.models.shard import WHOLE, Shard
from rekindle.core.models.weights.form import WeightForm, held_bytes
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle.formats.checkpoints.huggingface.quantized.parts.tables import E4M3
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import tensors_of
from rekindle.settings.engine import Quantize, Settings
from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.blocks import Array
from rekindle_kernels.encode import encode
from rekindle_kernels.quantized import Codes, Quantized
from rekindle_kernels.storage import Stored, has_large_groups, layout_of
from rekindle_kernels.xla.stored import widen
from tests.families import families_by_tier
from tests.unit.logits import logits_within, paged_logits

FLOAT32 = jnp.dtype("float32")
HERE = Place((jax.devices()[0],))
FIRST = ("qwen2", "granite-hybrid-moe")


def numbers_of(numbers: Array, kind: str) -> Array:
    """Return the numbers of the codes of (rows, inputs)."""
    size, group = layout_of(kind).size, layout_of(kind).numbers
    blocks = np.asarray(encode(numbers, kind).data).reshape(len(numbers), -1, size)
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    data = blocks[..., 4:]
    if kind.startswith("int8"):
        codes = data.view(np.int8).astype(np.float32)
    else:
        codes = np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], group).astype(np.float32) - 8
    return (codes * scales).reshape(numbers.shape)


@pytest.mark.parametrize("kind", ["int8:64", "int8:256", "int4:64", "int4:256"])
def test_codes_are_the_nearest_of_their_scale(kind: str) -> None:
    numbers = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    numbers[1], numbers[2], numbers[3, 7] = 0, 1e-42, 40
    group = layout_of(kind).numbers
    groups = numbers.reshape(6, -1, group)
    error = numbers_of(numbers, kind).reshape(groups.shape) - groups
    largest = np.abs(groups).max(-1, keepdims=True)
    if kind.startswith("int8"):
        assert np.all(np.abs(error) <= largest / 127 * 0.501 + 1e-37)
        return
    simple = np.clip(np.rint(groups / np.maximum(largest, 1e-30) * 7), -7, 7) * largest / 7 - groups
    assert np.all((error**2).sum(-1) <= (simple**2).sum(-1) * 1.3 + 1e-37)
    assert (error[[0, 4, 5]] ** 2).sum() < 0.9 * (simple[[0, 4, 5]] ** 2).sum()


def test_groups_without_finite_numbers_are_told_by_their_scale() -> None:
    numbers = np.ones((2, 64), np.float32)
    numbers[0, 3], numbers[1, 40] = np.inf, np.nan
    for kind in ("int8:32", "int4:32"):
        is_number = ~np.isnan(numbers_of(numbers, kind))
        np.testing.assert_array_equal(is_number, np.repeat([[False, True], [True, False]], 32, axis=1))


def test_only_whole_groups_of_kinds_without_offsets_are_encoded() -> None:
    for kind in ("int4:64:zero", "Q4_0", "int8:64"):
        with pytest.raises(ValueError, match=r'encoded as "int4:N" or "int8:N" .* not \(2, 96\)'):
            encode(np.zeros((2, 96)), kind)


def weights_by_request(
    requests: AbstractDecoder, form: WeightForm, weights: list[jax.Array]
) -> list[tuple[JoinedTensors, Array]]:
    """Return each request with the numbers of its weight, in the portable implementation."""
    by_place = dict(zip(requests.places, weights, strict=True))
    arrays = iter([by_place[place] for place in range(len(by_place))])
    result = []
    for request in requests.requests:
        own, storage = request.form(form, "xla"), request.storage(form)
        data = jax.tree.map(lambda _: next(arrays), own)
        numbers = np.asarray(data if storage is None else widen(Stored(data, storage), request.plain[-1]))
        result.append((request, numbers))
    return result


@pytest.mark.parametrize("is_accelerator", [False, True], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("family", families_by_tier(FIRST))
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_quantized_weights_are_the_codes_of_their_numbers(
    family: str, tensor: int, is_accelerator: bool, families: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_ENCODED_AT_ONCE", 1000)  # many pieces
    checkpoint = open_checkpoint(families / family)
    shards = [WHOLE] if tensor == 1 else [Shard(rank, tensor) for rank in range(tensor)]
    kinds = quantized_kinds(checkpoint.config, "int4", shards, is_accelerator=is_accelerator)
    form = WeightForm(FLOAT32, kinds, quantize="int4")
    for shard in shards:
        weights = load_weights(checkpoint.config, checkpoint.tensors, form, shard=shard)
        wide = load_weights(checkpoint.config, checkpoint.tensors, WeightForm(FLOAT32), shard=shard)
        abstract = abstract_decoder(checkpoint.config, form, "xla", shard)
        plain = abstract_decoder(checkpoint.config, WeightForm(FLOAT32), "xla", shard)
        pairs = zip(
            weights_by_request(abstract, form, weights),
            weights_by_request(plain, WeightForm(FLOAT32), wide),
            strict=True,
        )
        count = 0
        for (request, actual), (_, numbers) in pairs:
            storage = request.storage(form)
            if storage is None:
                np.testing.assert_array_equal(actual, numbers)
                continue
            ((kind, _),), count = storage.runs, count + 1
            expected = numbers_of(numbers.reshape(-1, numbers.shape[-1]), kind).reshape(numbers.shape)
            np.testing.assert_array_equal(actual, expected, err_msg=str(request.shapes))
            assert not is_accelerator or has_large_groups(kind, numbers.shape[-1])
            assert not any(f".{checkpoint.config.names.router}." in name for name in request.shapes)
        assert family not in FIRST or count > 5


@pytest.mark.parametrize(("quantize", "limit"), [pytest.param("int8", 0.08, marks=pytest.mark.wide), ("int4", 0.7)])
def test_logits_are_close_and_those_of_the_codes(quantize: Quantize, limit: float, families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    prompts = np.load(families / "qwen2" / "golden.npz")["input_ids"][:1]
    settings = Settings(quantize=quantize, activations="exact", implementation="xla")
    form = weight_form(checkpoint, settings, FLOAT32, HERE)
    rounded = {
        name: numbers_of(np.asarray(each), form.kind_of[name]) if name in form.kind_of else np.asarray(each)
        for name, each in checkpoint.tensors.items()
    }

    def logits(tensors: Mapping[str, Any], form: WeightForm, implementation: Implementation) -> Array:
        return paged_logits(load_decoder(checkpoint.config, tensors, form, implementation), prompts)[0]

    plain = logits(checkpoint.tensors, WeightForm(FLOAT32), "xla")
    (expected,), bound = logits_within(load_decoder(checkpoint.config, rounded, WeightForm(FLOAT32), "xla"), prompts)
    scale = np.abs(plain).max()
    assert 0 < np.std(expected - plain) < limit * np.std(plain)
    np.testing.assert_allclose(logits(checkpoint.tensors, form, "xla"), expected, rtol=0, atol=bound * scale)
    if operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), FLOAT32) is None:
        close = logits(checkpoint.tensors, replace(form, activations="int16"), "cpu")
        np.testing.assert_allclose(close, expected, atol=5e-4 * scale)


def test_codes_are_in_all_keys_and_take_less_memory(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    settings = [Settings(quantize=quantize) for quantize in (None, *get_args(Quantize))]
    settings.append(Settings(quantize="int8", activations="exact"))
    plans = [Blueprint.of(checkpoint, each, HERE) for each in settings]
    assert len({plan.program_keys()(plan.largest_step).digest for plan in plans}) == len(plans)
    assert len({Identity.of(plan).pages_key().digest for plan in plans}) == len(plans)
    plain, eight, four, _ = (plan.programs.shapes.weight_bytes for plan in plans)
    assert four < eight < 0.4 * plain
    for each, plan in zip(settings, plans, strict=True):
        resolved = plan.resolve(each)
        assert Blueprint.of(checkpoint, resolved, HERE).form == plan.form


def elsewhere(platform: str, **facts: str) -> Place:
    """Return a place with a device of a platform that is absent."""
    device: Any = SimpleNamespace(platform=platform, id=0, process_index=0, **facts)
    return Place((device,))


TPU = elsewhere("tpu")
INT4 = np.arange(16, dtype=np.float32) - 8


def test_accelerators_have_large_groups_and_their_own_activations(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    name, place, bfloat16 = "model.layers.0.mlp.down_proj.weight", elsewhere("gpu"), jnp.dtype("bfloat16")
    inputs = expected_shapes(checkpoint.config)[name][1]
    form = weight_form(checkpoint, Settings(quantize="int4"), bfloat16, place)
    assert (inputs, form.kind_of[name], form.activations) == (160, "int8:160", "bfloat16")
    assert weight_form(checkpoint, Settings(quantize="int4"), FLOAT32, place).activations == "exact"
    assert weight_form(checkpoint, Settings(quantize="int4"), FLOAT32, HERE).kind_of[name] == "int4:32"
    with pytest.raises(ConfigError, match=r'activations="int8" is for CPUs: .* on gpu'):
        weight_form(checkpoint, Settings(quantize="int8", activations="int8"), bfloat16, place)
    kinds = {"a": "int4:128:zero", "b": "int4:64", "c": "Q8_0", "d": "int8:96", "e": "int8:256", "f": "float8:128"}
    shapes = {name: (8, 96 if name == "d" else 512) for name in kinds}
    assert dict(large_groups(tuple(kinds.items()), shapes, floats=True)).keys() == {"a", "d", "e", "f"}
    assert dict(large_groups(tuple(kinds.items()), shapes, floats=False)).keys() == {"a", "d", "e"}


def test_codes_of_files_stay_packed_on_accelerators_where_a_scale_is_for_many(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    name = "model.layers.0.mlp.down_proj.weight"
    rows, inputs = expected_shapes(checkpoint.config)[name]
    data, scales = np.zeros((rows, inputs // 2), np.uint8), np.ones((rows, 1), np.float32)

    def packed_kinds(group: int, data: Array = data, table: Array = INT4, place: Place = TPU) -> Mapping[str, str]:
        codes = Codes(data, inputs, table, group, scales, np.dtype(np.float32))
        tensors = {**checkpoint.tensors, name: Quantized(inputs, range(rows), lambda _: codes)}
        changed = replace(checkpoint, tensors=tensors)
        return weight_form(changed, Settings(weights="packed"), jnp.dtype("bfloat16"), place).kind_of

    assert packed_kinds(inputs) == {name: f"int4:{inputs}"}
    floats = np.zeros((rows, inputs), np.uint8), E4M3
    assert packed_kinds(inputs, *floats) == {name: f"float8:{inputs}"}
    assert packed_kinds(inputs, *floats, elsewhere("gpu", compute_capability="9.0")) == {name: f"float8:{inputs}"}
    with pytest.raises(ConfigError, match=r"none of a supported kind.* \(FP8 takes a GPU of compute capability 9\.0\)"):
        packed_kinds(inputs, *floats, elsewhere("gpu", compute_capability="8.9"))
    with pytest.raises(ConfigError, match="has none of a supported kind, with a scale for at least 128 numbers"):
        packed_kinds(32)


def test_what_cannot_be_quantized_is_refused(families: Path) -> None:
    checkpoint = replace(open_checkpoint(families / "qwen2"), formats=("fp8",))
    with pytest.raises(ConfigError, match=r'plain numbers, and .* has fp8: .* weights="dequantized"'):
        weight_form(checkpoint, Settings(quantize="int8"), FLOAT32, HERE)
    assert weight_form(checkpoint, Settings(quantize="int8", weights="dequantized"), FLOAT32, HERE).kinds
    with pytest.raises(ConfigError, match="give one of them"):
        Settings(quantize="int8", weights="packed")
    with pytest.raises(ConfigError, match="quantize"):
        Settings(quantize="int2")  # type: ignore[arg-type]


def test_new_weights_of_any_form_are_quantized(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    form = weight_form(checkpoint, Settings(quantize="int8"), FLOAT32, HERE)
    arrays = {name: jnp.asarray(np.asarray(each)) for name, each in checkpoint.tensors.items()}
    others = tensors_of(arrays, checkpoint.config, form)
    put = [load_weights(checkpoint.config, each, form, join=join) for each in (checkpoint.tensors, others)]
    for first, second in zip(*put, strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def test_two_codes_of_four_bits_share_a_byte_on_accelerators() -> None:
    codes = jax.ShapeDtypeStruct((2, 3, 128), jnp.int4)
    assert (held_bytes(codes, "cpu"), held_bytes(codes, "gpu")) == (768, 384)
    assert held_bytes(jax.ShapeDtypeStruct((5,), jnp.bfloat16), "tpu") == 10
