"""Tensors of 4-bit floats in GGUF have the numbers of the gguf library, and stay packed."""

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.decoder import transposed_names
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from rekindle.formats.checkpoints.gguf.kinds import kind_of, multiplied, with_codes
from rekindle.formats.checkpoints.gguf.places import TensorPlace, TransposedExperts
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels.api import operations_of
from rekindle_kernels.blocks import Array, Blocks
from rekindle_kernels.quantized import Quantized, Stack, Turned
from tests.gguf_models.files import write_model
from tests.unit.logits import paged_logits

FLOAT32 = jnp.dtype("float32")
KINDS = {"MXFP4": {"float4:32"}, "NVFP4": {"float4:16"}}
"""The kinds in memory."""
PACKED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def random_blocks(kind: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return blocks of numbers of similar size, (..., bytes)."""
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size)).astype(np.uint8)
    scales = {"MXFP4": (120, 125, 1), "NVFP4": (16, 40, 4)}[kind]
    blocks[..., : scales[2]] = random.integers(*scales[:2], (*blocks.shape[:-1], scales[2]))
    return blocks.reshape(*shape[:-1], -1)


def quantize(writer: gguf.GGUFWriter, kind: str, names: Mapping[str, tuple[int, ...]], *, factors: bool) -> None:
    """Replace tensors by random blocks, with factors beside the tensors or without."""
    (tensors,) = writer.tensors
    for seed, (name, shape) in enumerate(names.items()):
        del tensors[name]
        writer.add_tensor(name, random_blocks(kind, shape, seed), raw_dtype=gguf.GGMLQuantizationType[kind])
        if factors:
            count = shape[0] if len(shape) == 3 else 1
            numbers = np.random.default_rng(seed).uniform(0.02, 0.05, count).astype(np.float32)
            writer.add_tensor(f"{name.removesuffix('.weight')}.scale", numbers)


def quantized_parts(kind: str, parts: tuple[str, ...], *, factors: bool) -> Callable[[gguf.GGUFWriter], None]:
    """Return a change of a file that quantizes these parts of all layers."""

    def change(writer: gguf.GGUFWriter) -> None:
        (tensors,) = writer.tensors
        names = {name: np.shape(np.asarray(tensor.tensor)) for name, tensor in tensors.items()}
        matrices = {
            name: shape for name, shape in names.items()
            if name.split(".")[-2] in parts and name.endswith("weight") and shape[-1] % 64 == 0
        }  # fmt: skip
        quantize(writer, kind, matrices, factors=factors)

    return change


def stored_numbers(path: Path) -> dict[str, Array]:
    """Return the numbers of all tensors by the gguf library, each times the factor beside it."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    numbers = {name: gguf.dequantize(each.data, each.tensor_type) for name, each in tensors.items()}
    for name in list(numbers):
        if name.endswith(".scale"):
            factor, of = numbers.pop(name), name.replace(".scale", ".weight")
            numbers[of] = numbers[of] * factor.reshape(-1, *[1] * (numbers[of].ndim - 1))
    return numbers


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_the_numbers_of_the_gguf_library(kind: str) -> None:
    library, data = gguf.GGMLQuantizationType[kind], random_blocks(kind, (3, 6, 128))
    if kind == "NVFP4":
        data.reshape(-1, 36)[:, :4] = np.resize(np.arange(256), (36, 4))
    expected = gguf.dequantize(data, library)
    coded = with_codes(Blocks(data, kind_of(library)))
    np.testing.assert_array_equal(np.asarray(coded, np.float32), expected)
    np.testing.assert_array_equal(np.asarray(coded[1][2:5], np.float32), expected[1, 2:5])
    factor = 0.037
    times = with_codes(Blocks(data[0], multiplied(kind_of(library), factor)))
    if kind == "NVFP4":
        np.testing.assert_allclose(np.asarray(times), expected[0] * np.float32(factor), rtol=2**-22)
    plain = Blocks(random_blocks("MXFP4", (4, 64)), kind_of(gguf.GGMLQuantizationType.Q4_0))
    assert with_codes(plain) is plain


@pytest.mark.parametrize(("kind", "factors"), [("MXFP4", False), ("NVFP4", False), ("NVFP4", True)])
@pytest.mark.parametrize("model", ["qwen2", pytest.param("llama-tied", marks=pytest.mark.wide)])
def test_a_model_of_them_has_their_numbers_and_logits(
    model: str, kind: str, factors: bool, families: Path, tmp_path: Path
) -> None:
    path = write_model(families / model, tmp_path / "model.gguf", quantized_parts(kind, PACKED, factors=factors))
    checkpoint, numbers = open_checkpoint(path), stored_numbers(path)
    up = checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
    assert isinstance(up, Quantized)
    np.testing.assert_allclose(np.asarray(up, np.float32), numbers["blk.1.ffn_up.weight"], rtol=2**-22)
    key = checkpoint.tensors["model.layers.1.self_attn.k_proj.weight"]
    if model == "qwen2":
        np.testing.assert_allclose(np.asarray(key, np.float32), numbers["blk.1.attn_k.weight"], rtol=2**-22)
    form = form_of(checkpoint)
    assert {kind for name, kind in form.kinds if "mlp" in name} == KINDS[kind]
    check_logits(checkpoint, form)


def test_experts_have_a_factor_each(tmp_path: Path) -> None:
    path, shape = tmp_path / "experts.gguf", (3, 32, 64)
    writer = gguf.GGUFWriter(path, "gpt-oss")
    names = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"
    for name in names:
        writer.add_tensor(name, np.zeros(shape, np.float32))
    quantize(writer, "NVFP4", dict.fromkeys(names, shape), factors=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file, numbers = open_gguf_file(path), stored_numbers(path)
    for name in names:
        np.testing.assert_allclose(np.asarray(file.read(name)), numbers[name], rtol=2**-22)
        np.testing.assert_allclose(np.asarray(file.read(name, range(2, 3))), numbers[name][2:], rtol=2**-22)
        whole = TensorPlace((name,)).read(file, shape)
        assert isinstance(whole, Stack), "nothing is computed yet"
    both = TransposedExperts(names, interleaved=True).read(file, (3, 64, 64))
    expected = np.stack([numbers[name] for name in names], axis=2).reshape(3, 64, 64).swapaxes(1, 2)
    np.testing.assert_allclose(np.asarray(both), expected, rtol=2**-22)
    one = both[1]
    assert isinstance(one, Turned)
    np.testing.assert_array_equal(np.asarray(one.T[5:18]), np.asarray(one.T)[5:18])


def test_experts_of_gpt_oss_stay_packed(families: Path, tmp_path: Path) -> None:
    stacks = {f"blk.{layer}.ffn_{part}_exps.weight": "MXFP4" for layer in range(2) for part in ("gate", "up")}
    checkpoint = open_checkpoint(write_model(families / "gpt-oss", tmp_path / "model.gguf", kinds=stacks))
    form = form_of(checkpoint)
    experts = [f"model.layers.{layer}.mlp.experts.gate_up_proj" for layer in range(2)]
    assert form.kinds == tuple((name, "float4:32") for name in experts)
    check_logits(checkpoint, form)


def form_of(checkpoint: Checkpoint) -> WeightForm:
    """Return the form with all blocks packed, of which nothing is rounded."""
    kinds, _ = kinds_in(checkpoint.tensors, checkpoint.tensors, transposed_names(checkpoint.config))
    return WeightForm(FLOAT32, kinds, "exact")


def check_logits(checkpoint: Checkpoint, form: WeightForm) -> None:
    """Compare the logits of packed weights with those of the same numbers, bit for bit."""
    if operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), FLOAT32):
        return
    plain = {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.tensors.items()}
    packed, expected = (
        paged_logits(load_decoder(checkpoint.config, tensors, each, "cpu"), [np.arange(1, 12)])[0]
        for tensors, each in ((checkpoint.tensors, form), (plain, WeightForm(FLOAT32)))
    )
    np.testing.assert_array_equal(packed, expected)
