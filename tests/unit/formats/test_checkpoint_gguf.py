"""A GGUF file gives the model of its Hugging Face directory, and a broken one is refused with a message."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from rekindle.formats.checkpoints.gguf.kinds import kind_of
from rekindle.formats.checkpoints.gguf.places import unpermute
from rekindle.formats.checkpoints.gguf.rope_factors import find_scaling
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.gguf_models.files import Change, llama3_factors, write_model

OF_LIBRARY = ("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
FFN_GATE = "blk.0.ffn_gate.weight"


def write_gguf(
    model: Checkpoint, path: Path, change: Change | None = None, kinds: Mapping[str, str] | None = None
) -> Path:
    return write_model(Path(model.source), path, change, kinds)


@pytest.fixture(scope="module")
def tied(families: Path) -> Checkpoint:
    return open_checkpoint(families / "llama-tied")


def test_llamas_query_rows_are_put_back_in_order(tied: Checkpoint, tmp_path: Path) -> None:
    path = write_gguf(tied, tmp_path / "model.gguf")
    stored = GGUFReader(path)
    (raw,) = (tensor.data for tensor in stored.tensors if tensor.name == "blk.1.attn_q.weight")
    name = "model.layers.1.self_attn.q_proj.weight"
    assert not np.array_equal(raw, tied.tensors[name])
    np.testing.assert_array_equal(open_checkpoint(path).tensors[name], tied.tensors[name])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_each_kind_of_tensor_is_read_as_the_gguf_library_does(kind: str, tied: Checkpoint, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.gate_proj.weight"
    path = write_gguf(tied, tmp_path / "model.gguf", kinds={FFN_GATE: kind})
    array = np.asarray(open_checkpoint(path).tensors[name])
    (raw,) = (tensor for tensor in GGUFReader(path).tensors if tensor.name == FFN_GATE)
    expected: dict[str, Any] = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}
    assert array.dtype == expected.get(kind, np.float32)
    np.testing.assert_array_equal(array.astype(np.float32), dequantize(raw.data, raw.tensor_type))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "MXFP4", "NVFP4", "Q5_0", "Q6_K"])
def test_blocks_are_dequantized_to_the_bit_as_the_gguf_library_does(kind: str) -> None:
    library = GGMLQuantizationType[kind]
    ours, random = kind_of(library), np.random.default_rng(0)
    blocks = random.integers(0, 256, (1000, GGML_QUANT_SIZES[library][1]), np.uint8)
    for place in (0, 2, -2):  # kinds keep their scales at these places
        scales = random.standard_normal((1000, 1)).astype(np.float16).view(np.uint8)
        blocks[:, place : place + 2 or None] = scales
    if kind == "MXFP4":  # whose scale is the power of two that its first byte says; the largest are beyond float32
        blocks[:, 0] = np.arange(1000) % 250
    numbers = ours.dequantize(blocks.reshape(-1))
    assert numbers.dtype == (ml_dtypes.bfloat16 if kind == "MXFP4" else np.float32)
    assert numbers.astype(np.float32).tobytes() == dequantize(blocks, library).tobytes()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "MXFP4", "NVFP4", *OF_LIBRARY])
def test_a_kind_has_the_librarys_name_and_sizes(name: str) -> None:
    kind = kind_of(GGMLQuantizationType[name])
    assert (kind.name, (kind.numbers, kind.size)) == (name, GGML_QUANT_SIZES[GGMLQuantizationType[name]])


def contents(path: Path) -> dict[str, Any]:
    """Read the metadata with the gguf library, without the fields that it adds about the file."""
    fields = GGUFReader(path).fields.items()
    return {key: field.contents() for key, field in fields if not key.startswith("GGUF.")}


@pytest.mark.wide
def test_the_default_models_metadata_is_what_the_gguf_library_reads(smollm2_path: Path) -> None:
    metadata = open_gguf_file(smollm2_path).metadata
    assert len(metadata["tokenizer.ggml.tokens"]) == 49152
    assert metadata == contents(smollm2_path)


def test_every_kind_of_metadata_is_what_the_gguf_library_reads(tied: Checkpoint, tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        for bits in (8, 16, 32, 64):
            getattr(writer, f"add_uint{bits}")(f"uint{bits}", 2**bits - 1)
            getattr(writer, f"add_int{bits}")(f"int{bits}", -(2 ** (bits - 1)))
        writer.add_float32("float32", 1 / 3)
        writer.add_float64("float64", 1 / 3)
        writer.add_bool("bool", True)
        writer.add_string("string", "naïve 東京 🚀")
        arrays: dict[str, list[Any]] = {
            "ints": [-1, 2],
            "floats": [0.5, -2.0],
            "bools": [True, False],
            "texts": ["", "é"],
        }
        for name, array in arrays.items():
            writer.add_array(name, array)

    path = write_gguf(tied, tmp_path / "model.gguf", change)
    metadata = open_gguf_file(path).metadata
    assert metadata["uint64"] == 2**64 - 1
    assert metadata["texts"] == ["", "é"]
    assert metadata == contents(path)
    assert {key: type(value) for key, value in metadata.items()} == {k: type(v) for k, v in contents(path).items()}


@pytest.mark.wide
def test_the_default_models_tensors_are_what_the_gguf_library_reads(smollm2: Checkpoint, smollm2_path: Path) -> None:
    assert len(smollm2.tensors) == 272
    assert smollm2.config.attentions[0].head_dim == 64
    assert smollm2.eos_ids == {0, 2}  # the file names one; "<|endoftext|>" ends a turn in any family
    names = {
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.7.attn_v.weight": "model.layers.7.self_attn.v_proj.weight",
    }
    for tensor in GGUFReader(smollm2_path).tensors:
        if tensor.name in names:
            np.testing.assert_array_equal(
                smollm2.tensors[names[tensor.name]], dequantize(tensor.data, tensor.tensor_type)
            )


@pytest.mark.parametrize(
    ("head_dim", "theta", "scaling"),
    [
        (128, 500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        (64, 500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
        (16, 500000.0, Llama3Scaling(8.0, 1.0, 4.0, 64)),
        (8, 1000000.0, Llama3Scaling(4.0, 1.0, 4.0, 64)),
        (256, 10000.0, Llama3Scaling(8.0, 2.0, 3.0, 1000)),
    ],
)
def test_llama3_scaling_is_found_again_from_its_factors(head_dim: int, theta: float, scaling: Llama3Scaling) -> None:
    half = head_dim // 2
    turns = theta ** (-np.arange(half) / half) / (2 * math.pi)
    factors = llama3_factors(scaling, turns).astype(np.float32)
    recovered = find_scaling(factors, theta, "here")
    assert recovered is not None
    np.testing.assert_allclose(llama3_factors(recovered, turns), factors, rtol=1e-5)
    if ((factors > 1) & (factors < scaling.factor)).sum() > 1 and scaling.low_freq_factor == 1.0:
        assert recovered.original_context == scaling.original_context
        assert recovered.low_freq_factor == pytest.approx(1.0, rel=1e-4)
        assert recovered.high_freq_factor == pytest.approx(4.0, rel=1e-4)


def test_factors_of_one_are_no_scaling() -> None:
    assert find_scaling(np.ones(32, np.float32), 1e4, "here") is None


def test_factors_of_another_form_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        find_scaling(np.linspace(1, 9, 32, dtype=np.float32) ** 2, 1e4, "here")


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.005, 0.5, 0.99999])
def test_a_truncated_file_is_an_error(share: float, tied: Checkpoint, tmp_path: Path) -> None:
    path = write_gguf(tied, tmp_path / "model.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"model\.gguf: .*(fetch it again|not a GGUF)"):
        open_checkpoint(path)


def test_a_default_model_cut_in_its_tokenizer_is_an_error(smollm2_path: Path, tmp_path: Path) -> None:
    with smollm2_path.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(1 << 20))
    with pytest.raises(CheckpointError, match="truncated"):
        open_checkpoint(tmp_path / "cut.gguf")


@pytest.mark.parametrize("place", range(4, 400, 7))
def test_a_damaged_header_never_gets_past_as_another_error(place: int, tied: Checkpoint, tmp_path: Path) -> None:
    path = write_gguf(tied, tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    content[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    try:
        open_checkpoint(path)
    except (CheckpointError, UnsupportedModel) as error:
        assert "model.gguf" in str(error)  # noqa: PT017  # some damage is in a part that is never read


def test_a_damaged_count_of_an_array_is_an_error(tied: Checkpoint, tmp_path: Path) -> None:
    path = write_gguf(tied, tmp_path / "model.gguf", lambda writer: writer.add_token_types([1] * 77))
    content = path.read_bytes()
    path.write_bytes(content.replace((77).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"), 1))
    with pytest.raises(CheckpointError, match=r"model\.gguf: .*1099511627776 elements.*fetch it again"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        (b"\0\0\0\3", UnsupportedModel, "big-endian"),
        (b"\1\0\0\0", UnsupportedModel, "version 1 is not supported, only 2 and 3"),
        (b"\4\0\0\0", UnsupportedModel, "version 4 is not supported, only 2 and 3"),
    ],
)
def test_a_version_that_is_not_known_is_refused(
    version: bytes, error: type[Exception], message: str, tied: Checkpoint, tmp_path: Path
) -> None:
    path = write_gguf(tied, tmp_path / "model.gguf")
    content = path.read_bytes()
    path.write_bytes(content[:4] + version + content[8:])
    with pytest.raises(error, match=message):
        open_checkpoint(path)


def test_a_kind_that_the_library_cannot_dequantize_is_named_when_it_is_read(tied: Checkpoint, tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        del writer.tensors[0]["output_norm.weight"]
        writer.add_tensor("output_norm.weight", np.ones(64))

    tensors = open_checkpoint(write_gguf(tied, tmp_path / "model.gguf", change)).tensors
    with pytest.raises(UnsupportedModel, match=r"model\.gguf: output_norm\.weight is F64"):
        tensors["model.norm.weight"]


@pytest.mark.parametrize(
    ("original", "damaged", "message"),
    [
        (b"b.ffn_up.weight", b"a.ffn_up.weight", "'a.ffn_up.weight' occurs twice"),
        (b"key.b", b"key.a", "the key 'key.a' occurs twice"),
        (
            b"general.alignment" + bytes([4, 0, 0, 0, 64]),
            b"general.alignment" + bytes([4, 0, 0, 0, 0]),
            "alignment must be .* got 0",
        ),
        (b"text.end", b"text\xff\xff\xff\xff", "decode"),
    ],
)
def test_a_damaged_part_of_the_header_is_told(
    original: bytes, damaged: bytes, message: str, tied: Checkpoint, tmp_path: Path
) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_custom_alignment(64)
        writer.add_uint32("key.a", 1)
        writer.add_uint32("key.b", 1)
        writer.add_string("text", "text.end")
        for name in "ab":
            writer.add_tensor(f"{name}.ffn_up.weight", np.ones(64, np.float32))

    path = write_gguf(tied, tmp_path / "model.gguf", change)
    content = path.read_bytes()
    assert content.count(original) == 1
    path.write_bytes(content.replace(original, damaged))
    with pytest.raises(CheckpointError, match=f"model.gguf: .*{message}.*fetch it again"):
        open_checkpoint(path)


def test_an_alignment_of_its_own_is_followed(tied: Checkpoint, tmp_path: Path) -> None:
    path = write_gguf(tied, tmp_path / "model.gguf", lambda writer: writer.add_custom_alignment(256))
    for name, tensor in open_checkpoint(path).tensors.items():
        np.testing.assert_array_equal(tensor, tied.tensors[name])


def add(kind: str, key: str, value: Any) -> Change:
    return lambda writer: getattr(writer, f"add_{kind}")(key, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            add("string", "general.architecture", "mamba"),
            r"'mamba' is not supported in GGUF files: it has Mamba-1 layers, which keep a state\. .* opens: Granite 4",
        ),
        (add("string", "llama.rope.scaling.type", "spiral"), "'spiral' is not supported"),
        (add("string", "llama.rope.scaling.type", "dynamic"), "'dynamic' is not supported"),
        (add("float32", "llama.attention.clamp_kqv", 8.0), "attention.clamp_kqv 8.0 is not supported"),
        (add("float32", "llama.rope.scaling.attn_factor", 1.5), "attn_factor 1.5"),
        (add("uint32", "llama.attention.value_length", 24), "attention.value_length 24"),
        (add("array", "llama.attention.head_count", [4, 4, 2]), "head_count differs between layers"),
        (add("uint32", "llama.nextn_predict_layers", 1), "nextn_predict_layers 1"),
    ],
)
def test_what_is_not_supported_is_named(change: Change, message: str, tied: Checkpoint, tmp_path: Path) -> None:
    def overwrite(writer: GGUFWriter) -> None:
        metadata = dict(writer.kv_data[0])
        writer.kv_data[0].clear()
        change(writer)
        writer.kv_data[0] = metadata | writer.kv_data[0]

    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(write_gguf(tied, tmp_path / "model.gguf", overwrite))


def test_attention_without_causality_reads_texts_in_both_directions(tied: Checkpoint, tmp_path: Path) -> None:
    change = add("bool", "llama.attention.causal", False)
    checkpoint = open_checkpoint(write_gguf(tied, tmp_path / "model.gguf", change))
    assert checkpoint.config.both_ways
    assert checkpoint.uses.both_ways


def test_a_missing_tensor_is_named(tied: Checkpoint, tmp_path: Path) -> None:
    def drop(writer: GGUFWriter) -> None:
        del writer.tensors[0]["blk.2.ffn_up.weight"]

    with pytest.raises(CheckpointError, match=r"missing model\.layers\.2\.mlp\.up_proj\.weight"):
        open_checkpoint(write_gguf(tied, tmp_path / "model.gguf", drop))


def test_a_number_that_does_not_fit_the_tensors_is_an_error(tied: Checkpoint, tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.kv_data[0]["llama.feed_forward_length"].value = 161

    with pytest.raises(CheckpointError, match=r"gate_proj\.weight must have the shape \(161, 64\)"):
        open_checkpoint(write_gguf(tied, tmp_path / "model.gguf", change))


def test_blocks_of_reordered_rows_are_read_in_order_and_no_others(tied: Checkpoint, tmp_path: Path) -> None:
    stored, name = "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight"
    path = write_gguf(tied, tmp_path / "model.gguf", kinds={stored: "Q4_1"})
    (raw,) = (tensor for tensor in GGUFReader(path).tensors if tensor.name == stored)
    expected = unpermute(dequantize(raw.data, raw.tensor_type), 4)
    tensor: Any = open_checkpoint(path).tensors[name]
    np.testing.assert_array_equal(np.asarray(tensor), expected)
    for rows in (slice(0, 1), slice(5, 40), slice(63, 64), slice(3, 3)):
        np.testing.assert_array_equal(np.asarray(tensor[rows]), expected[rows])
    sizes, stored_rows = list[int](), tensor.data.stored

    def read(begin: int, size: int) -> Any:
        sizes.append(size)
        return stored_rows.reader(begin, size)

    np.asarray(replace(tensor.data, stored=replace(stored_rows, reader=read))[16:32])
    assert sizes == [16 * tensor.data.shape[1]], "one head of 16 rows"
