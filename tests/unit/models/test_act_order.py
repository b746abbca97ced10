"""Weights of GPTQ with act-order stay packed: with the numbers of their file, in an order with consecutive groups."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rekindle
from rekindle import Generation
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.weights.load import load_decoder, load_weights
from rekindle.core.device.place import Place
from rekindle.core.errors import InvalidRequest, UnsupportedModel
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.shard import WHOLE, Shard
from rekindle.core.models.weights.form import WeightForm, kept_orders, kinds_in
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import tensors_of
from rekindle.settings.engine import Settings
from rekindle_kernels import layers
from rekindle_kernels.api import operations_of
from rekindle_kernels.blocks import Array
from rekindle_kernels.quantized import Codes, Quantized
from rekindle_kernels.storage import Activations, Stored
from tests.unit.logits import paged_logits

FLOAT32 = jnp.dtype("float32")
HERE = Place((jax.devices()[0],))
SIZE = 32
"""Inputs of a group."""
INPUTS = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 2, "up_proj": 2, "down_proj": 3}
"""The quantized modules of a layer; those of one input have the same order."""
Version = Literal["gptq", "gptq_v2"]


def in_words(codes: Array, bits: int) -> Array:
    """Return (rows, columns) codes as (words, columns) int32, along the rows."""
    each = codes.astype(np.uint32).reshape(-1, 32 // bits, codes.shape[1])
    shifts = np.arange(0, 32, bits, dtype=np.uint32)[None, :, None]
    words: Array = np.bitwise_or.reduce(each << shifts, axis=1).view(np.int32)
    return words


def quantized(module: str, weight: Array, places: Array, bits: int, version: Version) -> dict[str, Array]:
    """Return the tensors of a module for a weight (out, in), given the group of each input."""
    most, count = 2**bits - 1, len(places) // SIZE
    groups = np.stack([weight[:, places == group] for group in range(count)])  # (groups, out, inputs of a group)
    least, largest = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    scales = ((largest - least) / most).astype(np.float16)
    zeros = np.clip(np.round(-least / scales), 0, most).astype(np.uint8)
    codes = np.clip(np.round(weight.T / scales[places]) + zeros[places], 0, most)
    stored = zeros - (version == "gptq") & most
    tensors = {"qweight": in_words(codes, bits), "qzeros": in_words(stored.T, bits).T, "scales": scales}
    tensors["g_idx"] = places.astype(np.int32)
    return {f"{module}.{name}": np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def write_model(source: Path, to: Path, version: Version = "gptq", bits: int = 4, seed: int = 0) -> Path:
    """Write a tiny model with all linear modules quantized; each input of a layer has a random order."""
    to.mkdir()
    config = json.loads((source / "config.json").read_text())
    options = {"quant_method": "gptq", "bits": bits, "group_size": SIZE, "desc_act": True, "sym": False}
    config["quantization_config"] = options | {"checkpoint_format": version}
    (to / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    for name, weight in list(tensors.items()):
        module, _, kind = name.rpartition(".")
        part = module.rpartition(".")[2]
        if kind == "weight" and part in INPUTS:
            layer = int(module.split(".")[2])
            order = np.random.default_rng([seed, layer, INPUTS[part]]).permutation(weight.shape[1])
            del tensors[name]
            tensors |= quantized(module, weight.astype(np.float32), order // SIZE, bits, version)
    save_file(tensors, to / "model.safetensors")
    return to


@pytest.fixture
def model(families: Path, tmp_path: Path) -> Path:
    """Return a tiny model of GPTQ with act-order."""
    return write_model(families / "qwen2", tmp_path / "model")


def form_of(checkpoint: Checkpoint, activations: Activations = "int16") -> WeightForm:
    """Return the form with all blocks packed."""
    kinds, orders = kinds_in(checkpoint.tensors, checkpoint.tensors, ())
    return WeightForm(FLOAT32, kinds, activations, orders=orders)


def unrounded(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the numbers of a checkpoint; products of codes and scales are float32, as in packed weights."""
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        codes = tensor.codes() if isinstance(tensor, Quantized) else None
        tensors[name] = replace(codes, dtype=np.dtype(np.float32)).widen() if isinstance(codes, Codes) else tensor
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("version", "bits"), [("gptq", 4), pytest.param("gptq_v2", 8, marks=pytest.mark.wide)], ids=["4 bits", "8 bits"]
)
@pytest.mark.parametrize(
    "shard",
    [*(pytest.param(each, marks=pytest.mark.wide) for each in (WHOLE, Shard(0, 2))), Shard(1, 2)],
    ids=["whole", "first", "second"],
)
def test_packed_weights_have_the_numbers_of_their_file(
    version: Version, bits: int, shard: Shard, families: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_model(families / "qwen2", tmp_path / "model", version, bits))
    form, plain = form_of(checkpoint), unrounded(checkpoint)
    assert {kind for _, kind in form.kinds} == {f"int{bits}:32:zero"}
    assert str(form) == f"int{bits}:32:zero with int16 activations, act-order"
    requests = abstract_decoder(checkpoint.config, form, "xla", shard).requests
    packed = _by_request(checkpoint, checkpoint.tensors, form, shard)
    expected = _by_request(checkpoint, plain, WeightForm(FLOAT32), shard)
    for request, array, numbers in zip(requests, packed, expected, strict=True):
        storage = request.storage(form)
        if storage is None:
            np.testing.assert_allclose(array, numbers, rtol=2**-10, err_msg=str(request.shapes))  # the file's float16
            continue
        assert storage.ordered
        shape, ids = (storage.outputs, request.plain[-1]), jnp.arange(storage.outputs)
        rows = layers.look_up(Stored(array, storage), ids, shape, implementation="xla")
        np.testing.assert_array_equal(rows, numbers, err_msg=str(request.shapes))
    count = sum(request.storage(form) is not None for request in requests)
    assert count == checkpoint.config.num_layers * (4 if shard is WHOLE else 2), "no device has whole groups of inputs"


def _by_request(checkpoint: Checkpoint, tensors: Any, form: WeightForm, shard: Shard) -> list[Any]:
    """Return the weights of a model in the order of requests, an array or a tree each."""
    abstract = abstract_decoder(checkpoint.config, form, "xla", shard)
    arrays = load_weights(checkpoint.config, tensors, form, shard=shard)
    ordered = iter([arrays[abstract.places.index(place)] for place in range(len(arrays))])
    return [jax.tree.map(lambda _: next(ordered), request.form(form, "xla")) for request in abstract.requests]


def test_logits_of_packed_weights_are_close_to_those_of_their_numbers(model: Path, families: Path) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), FLOAT32):
        pytest.skip(reason)
    checkpoint = open_checkpoint(model)
    prompts = np.load(families / "qwen2" / "golden.npz")["input_ids"][:1]

    def logits(tensors: Any, form: WeightForm) -> Array:
        return paged_logits(load_decoder(checkpoint.config, tensors, form, "cpu"), prompts)[0]

    expected = logits(unrounded(checkpoint), WeightForm(FLOAT32))
    for activations, limit in (("exact", 1e-5), ("int16", 5e-4)):
        close = logits(checkpoint.tensors, form_of(checkpoint, activations))  # type: ignore[arg-type]
        assert np.abs(close - expected).max() <= limit * np.abs(expected).max()


def test_projections_with_several_orders_are_widened_together(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    one, other = (f"model.layers.0.self_attn.{part}_proj.weight" for part in ("q", "o"))
    matrix = checkpoint.tensors[other]
    assert matrix.shape == checkpoint.tensors[one].shape
    tensors = {**checkpoint.tensors, one: matrix}
    form = form_of(replace(checkpoint, tensors=tensors))
    assert form.order_of[other] == form.order_of[one] != form.order_of[one.replace("q_proj", "k_proj")]
    requests = [
        request for request in abstract_decoder(checkpoint.config, form, "xla").requests if one in request.shapes
    ]
    assert [request.storage(form) for request in requests] == [None]
    load_weights(checkpoint.config, tensors, form)
    others = tuple((name, kind) for name, kind in form.kinds if name != min(form.order_of))
    assert min(form.order_of) not in dict(kept_orders(form.orders, others)).values()


def test_new_weights_may_have_another_order_but_not_for_other_tensors(
    model: Path, families: Path, tmp_path: Path
) -> None:
    checkpoint, other = (
        open_checkpoint(model),
        open_checkpoint(write_model(families / "qwen2", tmp_path / "other", seed=1)),
    )
    form = form_of(checkpoint)
    assert form_of(other) == form, "the same programs"
    assert set(tensors_of(other, checkpoint.config, form)) == set(checkpoint.tensors)
    name = "model.layers.0.self_attn.k_proj.weight"
    changed = {**checkpoint.tensors, name: other.tensors[name]}
    with pytest.raises(
        UnsupportedModel, match=r'joins .*self_attn.\w_proj.weight with others by the order .*"dequantized"'
    ):
        tensors_of(changed, checkpoint.config, form)


def test_the_order_is_in_all_keys(model: Path) -> None:
    checkpoint, settings = open_checkpoint(model), Settings(weights="packed")
    ordered = Blueprint.of(checkpoint, settings, HERE)
    assert ordered.form.orders
    plain = {name: _in_file_order(tensor) for name, tensor in checkpoint.tensors.items()}
    other = Blueprint.of(replace(checkpoint, tensors=plain), settings, HERE)
    assert (other.form.kinds, other.form.orders) == (ordered.form.kinds, ())
    plans = ordered, other
    assert len({plan.program_keys()(plan.largest_step).digest for plan in plans}) == 2
    assert len({Identity.of(plan).pages_key().digest for plan in plans}) == 2


def _in_file_order(tensor: Any) -> Any:
    if not isinstance(tensor, Quantized):
        return tensor
    reader = tensor.reader
    return replace(tensor, reader=lambda rows: replace(reader(rows), places=None))  # type: ignore[type-var]


@pytest.mark.wide
def test_a_session_answers_and_takes_new_weights(model: Path, families: Path, tmp_path: Path) -> None:
    other = write_model(families / "qwen2", tmp_path / "other", seed=1)

    def answer(session: rekindle.Session) -> Generation:
        return session.generate_sync(token_ids=[5, 6, 7], max_tokens=8, ignore_eos=True, logprobs=3)

    def open_packed(path: Path) -> rekindle.Session:
        return rekindle.open_sync(
            path, dtype="float32", weights="packed", progress=False, precompile="lazy", num_pages=8, max_context=64
        )

    with open_packed(model) as session:
        assert session.settings.weights == "packed"
        first = answer(session)
        session.update_weights_sync(other)
        second = answer(session)
    with open_packed(other) as session:
        assert answer(session).logprobs == second.logprobs != first.logprobs
        with pytest.raises(InvalidRequest, match=r"writes the codes of quantize=, and .* was opened without it"):
            session.save_quantized_sync(tmp_path / "saved.gguf")
