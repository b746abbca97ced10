"""Quantized tensors of a checkpoint are, bit for bit, the numbers that the library of their format makes of them."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from rekindle.assembly.weights.load import _select, load_decoder, load_weights
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle.formats.checkpoints.huggingface.directory import _transposed
from rekindle.formats.checkpoints.huggingface.quantized.formats import with_quantized
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile, open_safetensors
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, Tensor
from rekindle_kernels.quantized import Codes, Quantized
from rekindle_kernels.storage import BlockRows, Stored, storage_of
from tests.unit.logits import logits_within

GOLDENS = Path(__file__).parents[2] / "goldens" / "quantized"
CASES = sorted(path.stem for path in (GOLDENS / "cases").glob("*.safetensors"))
MODELS = sorted(path.parent.name for path in GOLDENS.glob("*/model.safetensors"))
GOLDEN = "golden."
UNUSED = ("activation_scale", "input_scale", "weight_format", "g_idx")
"""Tensors without an effect on the numbers, or with one by their values only."""
TEXTS = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
"""Tensors with texts."""


def case_of(name: str) -> tuple[SafetensorsFile, dict[str, Any]]:
    """Return the file of a case, and the quantization's part of its config."""
    path = GOLDENS / "cases" / f"{name}.safetensors"
    with safe_open(path, framework="numpy") as stored:
        settings: dict[str, Any] = json.loads(stored.metadata()["config"])
    return open_safetensors(path), settings


def load_case(case: str) -> tuple[dict[str, Tensor], dict[str, Array]]:
    """Return the quantized tensors of a case, and their numbers by its library."""
    stored, settings = case_of(case)
    (file,) = with_quantized([stored], settings, case)
    goldens = {name for name in file.shapes if name.startswith(GOLDEN)}
    return (
        {name: load() for name, load in file.quantized.items()},
        {name.removeprefix(GOLDEN): np.asarray(file.stored(name, "F32", "F16", "BF16")()) for name in goldens},
    )


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_numbers_of_the_library_bit_for_bit(case: str) -> None:
    tensors, numbers = load_case(case)
    assert set(tensors) == set(numbers)
    for name, expected in numbers.items():
        assert tensors[name].shape == expected.shape
        assert equal(np.asarray(tensors[name]), expected)


@pytest.mark.parametrize("case", CASES)
def test_their_parts_are_parts_of_the_numbers(case: str, implementation: Implementation) -> None:
    """Check rows from any row on, read alone and packed."""
    for name, expected in load_case(case)[1].items():
        whole = load_case(case)[0][name]
        matrices = [(whole[i], expected[i]) for i in range(len(whole))] if whole.ndim == 3 else [(whole, expected)]
        for tensor, numbers in matrices:
            for first in (0, 3, len(numbers) - 5):
                assert equal(np.asarray(tensor[first:][:5]), numbers[first : first + 5])
            for dtype in ("float32", "bfloat16"):
                form = layers.packed(numbers.shape, jnp.dtype(dtype), implementation=implementation)
                packed, reference = (np.zeros(form.shape, form.dtype) for _ in range(2))
                layers.pack([tensor[:5], tensor[5:]], packed, implementation=implementation)
                layers.pack([numbers], reference, implementation=implementation)
                assert equal(packed, reference)


PACKED = {
    "compressed-fp8": "float8:64", "compressed-fp8-tensor": "float8:64", "compressed-mxfp8": "float8:32",
    "fp8-powers": "float8:32", "fp8-tensor": "float8:32", "fp8-tensor-plain-scale": "float8:32",
    "mlx-mxfp8": "float8:32", "compressed-fp8-block": None, "fp8-e5m2": None, "fp8-partial-blocks": None,
    "fp8-stack": None,
}  # fmt: skip
"""The kind of each case with floats of 8 bits; None without whole groups of 32, or for E5M2."""


@pytest.mark.parametrize("case", PACKED)
def test_floats_of_8_bits_are_packed_with_the_numbers_of_the_library(case: str, implementation: Implementation) -> None:
    assert {each for each in CASES if "fp8" in each} == set(PACKED)
    (name, tensor), ((_, expected),) = *load_case(case)[0].items(), load_case(case)[1].items()
    kinds, _ = kinds_in({name: tensor}, [name], ())
    assert kinds == (() if PACKED[case] is None else ((name, PACKED[case]),))
    if not kinds:
        return
    assert equal(unpacked_rows(tensor, implementation).astype(expected.dtype), expected)


PACKED_INTEGERS = {
    "awq-groups": None, "compressed-int8": "int8:64", "compressed-int8-asym": "int8:64:zero",
    "compressed-w3": "int4:32:zero", "compressed-w4-asym": "int4:32:zero", "compressed-w4-asym-f16": "int4:32:zero",
    "compressed-w8": "int8:32", "compressed-w8-asym": "int8:64:zero", "gptq-2": None, "gptq-3": "int4:32:zero",
    "gptq-whole-rows": "int4:32:zero", "mlx-2": "int4:32:least", "mlx-3": "int4:32:least", "mlx-5": "int8:32:least",
    "mlx-6": "int8:32:least", "mlx-8": "int8:32:least",
}  # fmt: skip
"""The kind of cases with integers; None without whole groups of 32, or with act-order."""


@pytest.mark.parametrize("case", PACKED_INTEGERS)
def test_integers_of_at_most_4_bits_are_packed_in_4(case: str, implementation: Implementation) -> None:
    ((name, tensor),) = load_case(case)[0].items()
    expected = () if PACKED_INTEGERS[case] is None else ((name, PACKED_INTEGERS[case]),)
    assert kinds_in({name: tensor}, [name], ()) == (expected, ())
    assert isinstance(tensor, Quantized)
    codes = tensor.codes()
    assert isinstance(codes, Codes)
    assert len(codes.data[0]) == codes.inputs * (4 if len(codes.table) == 16 else 8) // 8
    if expected:
        rows = unpacked_rows(tensor, implementation)
        np.testing.assert_array_equal(rows, replace(codes, dtype=np.dtype(np.float32)).widen())


PACKED_TABLES = {
    "bitsandbytes-fp4": "fp4:64", "bitsandbytes-nf4": "nf4:64", "bitsandbytes-nf4-nested": "nf4:32",
    "compressed-mxfp4": "float4:32", "mlx-mxfp4": "float4:32", "bitsandbytes-nf4-crossing": None,
    "compressed-nvfp4": "float4:16", "mlx-nvfp4": "float4:16", "modelopt-nvfp4": "float4:16",
}  # fmt: skip
"""The kind of cases with floats of 4 bits; None across the ends of rows."""


@pytest.mark.parametrize("case", PACKED_TABLES)
def test_floats_of_4_bits_are_packed_with_the_numbers_of_the_library(case: str, implementation: Implementation) -> None:
    (name, tensor), ((_, expected),) = *load_case(case)[0].items(), load_case(case)[1].items()
    kinds, _ = kinds_in({name: tensor}, [name], ())
    assert kinds == (() if PACKED_TABLES[case] is None else ((name, PACKED_TABLES[case]),))
    if kinds:
        assert equal(unpacked_rows(tensor, implementation).astype(expected.dtype), expected)


def test_the_form_of_floats_of_4_bits_tells_what_is_multiplied() -> None:
    checkpoint = open_checkpoint(GOLDENS / "bitsandbytes-nf4")
    (kinds, _), wide = kinds_in(checkpoint.tensors, checkpoint.tensors, ()), np.dtype(np.float32)
    assert str(WeightForm(wide, kinds)) == "nf4:64 with float32 activations"
    assert str(WeightForm(wide, kinds, "bfloat16")) == "nf4:64 with bfloat16 activations"
    assert str(WeightForm(wide, (("x", "float4:32"),))) == "float4:32 with int16 activations"


def test_awq_is_packed_as_gptq_with_the_numbers_of_its_file(implementation: Implementation) -> None:
    checkpoint = open_checkpoint(GOLDENS / "awq")
    kinds = dict(kinds_in(checkpoint.tensors, checkpoint.tensors, ())[0])
    assert {*kinds.values()} == {"int4:32:zero"}
    for name in kinds:
        expected = np.asarray(checkpoint.tensors[name]).astype(np.float32)
        rows = unpacked_rows(checkpoint.tensors[name], implementation)
        np.testing.assert_allclose(rows, expected, rtol=2**-11, atol=0, err_msg=name)  # the file's are float16


def unpacked_rows(tensor: Tensor, implementation: Implementation) -> Array:
    """Return the rows of a matrix from its packed form."""
    matrix = BlockRows.of(tensor)
    storage = storage_of([(matrix.kind, len(matrix))])
    shape = (len(matrix), matrix.inputs)
    form = layers.packed(shape, storage, implementation=implementation)
    into = jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), form)
    layers.pack_blocks([matrix], into, storage, matrix.inputs, implementation=implementation)
    weight = Stored(jax.tree.map(jnp.asarray, into), storage)
    ids = jnp.arange(len(matrix), dtype=jnp.int32)
    return np.asarray(layers.look_up(weight, ids, shape, implementation=implementation))


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_a_library_opens_with_its_numbers_and_logits(model: str) -> None:
    checkpoint, golden = open_checkpoint(GOLDENS / model), np.load(GOLDENS / model / "golden.npz")
    for name, digest in zip(golden["names"], golden["digests"], strict=True):
        numbers = np.asarray(checkpoint.tensors[name])
        assert numbers.dtype.name == golden["dtype"]
        assert hashlib.sha256(numbers.tobytes()).hexdigest() == digest, name
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    (logits,), bound = logits_within(decoder, [golden["prompt"]])
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=bound * np.abs(golden["logits"]).max())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shard", [Shard(0, 2), Shard(1, 2)], ids=["first", "second"])
def test_a_device_of_a_mesh_has_its_part_of_the_numbers(
    model: str, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(GOLDENS / model)
    plain = {name: np.asarray(tensor) for name, tensor in checkpoint.tensors.items()}
    expected = load_weights(checkpoint.config, plain, WeightForm(jnp.dtype("float32")), shard=shard)
    monkeypatch.setattr("rekindle.assembly.weights.load.MAX_RUNS", 1)  # rows one by one
    monkeypatch.setattr("rekindle.assembly.weights.copying.PIECE_ROWS", 8)
    monkeypatch.setattr("rekindle.assembly.weights.copying.PIECE_BYTES", 1)
    weights = load_weights(checkpoint.config, checkpoint.tensors, WeightForm(jnp.dtype("float32")), shard=shard)
    for number, (one, other) in enumerate(zip(weights, expected, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=str(number))


def test_rows_in_another_order_are_computed_when_they_are_copied() -> None:
    matrix, expected = (tensors["x.weight"] for tensors in load_case("fp8-partial-blocks"))
    order = np.random.default_rng(0).permutation(2 * len(expected))
    request = JoinedTensors({}, True, np.tile(order, 10))
    (selection,) = _select(request, [matrix, matrix])
    assert isinstance(selection, Quantized)
    whole = np.concatenate([np.asarray(expected)] * 2)[np.tile(order, 10)]
    assert selection.shape == whole.shape
    np.testing.assert_array_equal(np.asarray(selection[7:30]), whole[7:30])


def test_a_transposed_stack_is_computed_one_matrix_at_a_time() -> None:
    (stack,), (expected,) = (list(tensors.values()) for tensors in load_case("fp8-stack"))
    transposed = _transposed(lambda: stack)
    assert transposed.shape == (len(expected), *expected.shape[:0:-1])
    for index, matrix in enumerate(np.asarray(expected)):
        assert isinstance(transposed[index], Quantized)
        assert equal(np.asarray(transposed[index][3:8]), matrix.T[3:8])


@pytest.mark.parametrize("case", CASES)
def test_a_cut_file_is_refused(case: str) -> None:
    file, settings = case_of(case)
    for name in (name for name in file.shapes if not name.startswith(GOLDEN) and not name.endswith(UNUSED)):
        shapes = {other: shape for other, shape in file.shapes.items() if other != name}
        try:
            (remainder,) = with_quantized([replace(file, shapes=shapes)], settings, case)
        except CheckpointError as error:
            assert re.search(rf"{case}: missing {re.escape(name)}", str(error))  # noqa: PT017
        else:
            assert len(remainder.quantized) < len(load_case(case)[0]), name  # the model's config misses it


@pytest.mark.parametrize("case", CASES)
def test_tensors_of_other_shapes_are_refused(case: str) -> None:
    file, settings = case_of(case)
    for name, shape in file.shapes.items():
        if name.startswith(GOLDEN) or name.endswith((*UNUSED, *TEXTS)) or not shape:
            continue
        other = (*shape[:-1], shape[-1] + 1)
        try:
            (changed,) = with_quantized([replace(file, shapes={**file.shapes, name: other})], settings, case)
            matches = {each: changed.shapes[each] == file.shapes[GOLDEN + each] for each in changed.quantized}
            assert not all(matches.values()), (name, shape)  # the model's config expects another shape
        except CheckpointError as error:
            assert "must have the shape" in str(error)  # noqa: PT017


@pytest.mark.parametrize("case", CASES)
def test_tensors_of_other_dtypes_are_refused(case: str) -> None:
    file, settings = case_of(case)
    for name in (name for name in file.shapes if not name.startswith(GOLDEN) and not name.endswith((*UNUSED, *TEXTS))):
        header = {**file._header, name: file._header[name] | {"dtype": "F64"}}
        try:
            (changed,) = with_quantized([replace(file, _header=header)], settings, case)
            assert len(changed.quantized) < len(load_case(case)[0]), name
        except UnsupportedModel as error:
            assert f"{name} is F64, supported are" in str(error)  # noqa: PT017


def equal(numbers: Array, expected: Array) -> bool:
    """Return True if the bits are equal."""
    return numbers.dtype == expected.dtype and numbers.tobytes() == expected.tobytes()
