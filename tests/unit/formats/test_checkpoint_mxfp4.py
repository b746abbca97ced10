"""Tensors of a checkpoint in MXFP4 are the numbers of the format's definition, and a model opens with them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rekindle
from rekindle import Generation
from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.decoder import transposed_names
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import tensors_of
from rekindle_kernels.api import operations_of
from rekindle_kernels.quantized import Stack

NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The numbers of four bits, E2M1, by their bits."""


def coded(rng: np.random.Generator, experts: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """Return random blocks and scales with their numbers, (experts, in, out)."""
    codes = rng.integers(16, size=(experts, outputs, inputs // 32, 32)).astype(np.uint8)
    powers = rng.integers(-7, 2, size=codes.shape[:3])
    numbers = NUMBERS[codes] * 2.0 ** powers[..., None]
    return {
        "_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        "_scales": (powers + 127).astype(np.uint8),
        "": numbers.reshape(experts, outputs, inputs).transpose(0, 2, 1).astype(ml_dtypes.bfloat16),
    }


@pytest.fixture
def models(families: Path, tmp_path: Path) -> dict[str, Path]:
    """Return a gpt-oss with experts in MXFP4, and the same one in bfloat16."""
    source, rng = families / "gpt-oss", np.random.default_rng(0)
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"intermediate_size": 32}
    arrays: dict[str, np.ndarray] = {}
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts"
        for name, outputs in ((f"{prefix}.gate_up_proj", 64), (f"{prefix}.down_proj", 32)):
            del tensors[name]
            arrays |= {name + ending: array for ending, array in coded(rng, 5, 32, outputs).items()}
        bias = rng.standard_normal((5, 64)).astype(ml_dtypes.bfloat16)
        tensors[f"{prefix}.gate_up_proj_bias"] = bias
    stored = {"mxfp4": ("_blocks", "_scales"), "bfloat16": ("_proj",)}
    paths = {}
    for name, endings in stored.items():
        paths[name] = tmp_path / name
        paths[name].mkdir()
        quantized = {"quantization_config": {"quant_method": "mxfp4"}} if name == "mxfp4" else {}
        (paths[name] / "config.json").write_text(json.dumps(config | quantized))
        own = {each: np.ascontiguousarray(array) for each, array in arrays.items() if each.endswith(endings)}
        save_file(tensors | own, paths[name] / "model.safetensors")
    return paths


def test_they_are_the_numbers_of_the_format(models: dict[str, Path]) -> None:
    quantized, plain = open_checkpoint(models["mxfp4"]), open_checkpoint(models["bfloat16"])
    assert quantized.config == plain.config
    assert set(quantized.tensors) == set(plain.tensors)
    for name in plain.tensors:
        actual, expected = np.asarray(quantized.tensors[name]), np.asarray(plain.tensors[name])
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected, err_msg=name)


@pytest.mark.wide
def test_a_model_with_them_answers_as_with_the_numbers(models: dict[str, Path]) -> None:
    answers = []
    for path in models.values():
        with rekindle.open_sync(path, progress=False, precompile="lazy", num_pages=4, max_context=64) as session:
            answers.append(session.generate_sync(token_ids=[5, 6, 7], max_tokens=8, ignore_eos=True).token_ids)
    assert answers[0] == answers[1]


@pytest.mark.wide
def test_experts_stay_packed_with_the_products_of_their_numbers(models: dict[str, Path]) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), np.dtype(np.float32)):
        pytest.skip(reason)

    def answer(name: str, weights: Literal["packed", "dequantized"], numbers: Literal["exact"] | None) -> Generation:
        with rekindle.open_sync(
            models[name], dtype="float32", weights=weights, activations=numbers, progress=False, precompile="lazy",
            num_pages=4, max_context=64,
        ) as session:  # fmt: skip
            return session.generate_sync(token_ids=[5, 6, 7], max_tokens=8, ignore_eos=True, logprobs=3)

    packed, plain = answer("mxfp4", "packed", "exact"), answer("bfloat16", "dequantized", None)
    assert packed.token_ids == plain.token_ids
    assert packed.logprobs == plain.logprobs, "bit for bit"


def test_experts_in_another_order_of_numbers_are_not_packed(models: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(models["mxfp4"])
    names, turned = sorted(checkpoint.tensors), transposed_names(checkpoint.config)
    experts = tuple((name, "float4:32") for name in names if name.endswith(("gate_up_proj", "down_proj")))
    assert kinds_in(checkpoint.tensors, names, turned) == (experts, ())
    (name, _), *_ = experts
    as_stored = Stack(tuple(each.T for each in checkpoint.tensors[name].members))  # type: ignore[union-attr]
    assert kinds_in({name: as_stored}, [name], turned) == ((), ())
    other = replace(checkpoint, tensors={**checkpoint.tensors, name: as_stored})
    with pytest.raises(UnsupportedModel, match=f"keeps {name} packed as float4:32, and in .* it is not packed"):
        tensors_of(other, checkpoint.config, WeightForm(np.dtype(np.float32), experts))


def test_another_quantization_is_refused(families: Path, tmp_path: Path) -> None:
    shutil.copytree(families / "gpt-oss", tmp_path / "other")
    path = tmp_path / "other" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "quark"}}))
    with pytest.raises(UnsupportedModel, match="quantized by quark are not supported, but awq, "):
        open_checkpoint(path.parent)
