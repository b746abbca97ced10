"""A GGUF file of each of llama.cpp's architectures gives the model of the directory that it was made of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.rope import rope_frequencies
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.gguf.rope import rope_parameters
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.registry import FAMILIES
from tests.gguf_models.files import NAMES, UNSAID, WRITTEN, Change, said_directory, write_model
from tests.unit.logits import KNOWN, logits_within

CHEAP = ("bamba", "falcon-h1-norm", "gpt-neox", "gpt2", "stablelm-parallel")
"""Models with logits computed in every run. The logits of the others follow from the config and the tensors."""

OTHERWISE = ("bamba", "falcon_h1")
"""Families with other tensors and multipliers in their files for the same logits, compared in every run."""
STORED_AS = {"glm4_moe_lite": "deepseek_v3", "solar_open": "glm4_moe"}
"""Families without an architecture of their own, by the family read from their files."""


def check_same(actual: Checkpoint, model: Checkpoint) -> None:
    """Check two checkpoints for the same tensors and, apart from the wording of files, the same config."""
    config = model.config
    if config.family in OTHERWISE:
        assert actual.config.states() == config.states()
        return
    if config.family == "mistral" and config.attentions[0].window is None:
        config = replace(config, family="llama")
    config = replace(config, family=STORED_AS.get(config.family, config.family))
    if config.family.startswith("hunyuan"):  # its file says the base of the rope times the factor
        for ours, theirs in zip(config.attentions, actual.config.attentions, strict=True):
            assert ours.rope is not None
            assert theirs.rope is not None
            head_dim = ours.head_dim
            expected, came = rope_frequencies(ours.rope, head_dim), rope_frequencies(theirs.rope, head_dim)
            np.testing.assert_allclose(came, expected, rtol=1e-6)
        layers = zip(config.layers, actual.config.layers, strict=True)
        config = replace(config, layers=tuple(replace(ours, attention=theirs.attention) for ours, theirs in layers))
    names = config.names  # a file has all projections as (out, in), and no heads with queries, keys and values
    assert actual.config == replace(config, names=replace(names, transposed=False, qkv_by_head=False))
    assert set(actual.tensors) == set(model.tensors)
    if names.qkv_by_head or names.transposed:
        return  # the logits are compared in every run
    for name, tensor in actual.tensors.items():
        # A norm of which the file has the 1 added has lost the last bit of small weights, and a rate some bits.
        atol = 1e-6 if name.endswith("A_log") else 1e-7
        np.testing.assert_allclose(tensor, np.asarray(model.tensors[name], np.float32), rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("model", WRITTEN)
def test_a_file_gives_the_model_of_the_directory(model: str, families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(families / model, tmp_path / "model.gguf"))
    check_same(checkpoint, open_checkpoint(said_directory(families / model, tmp_path / model)))


def logits_of(checkpoint: Checkpoint, ids: Any) -> tuple[Any, float]:
    """Return the logits of the last positions, and the bound of their rounding errors."""
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32"))
    (logits,), bound = logits_within(decoder, [ids], KNOWN)
    return logits, bound


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=() if model in CHEAP else pytest.mark.deep) for model in WRITTEN]
)
def test_a_file_gives_the_logits_of_the_reference_within_rounding(model: str, families: Path, tmp_path: Path) -> None:
    golden = np.load(families / model / "golden.npz")
    checkpoint = open_checkpoint(write_model(families / model, tmp_path / "model.gguf"))
    ids, expected = golden["input_ids"][0], golden["logits"][0]
    if model in UNSAID:  # the reference is of what the file does not say
        expected, _ = logits_of(open_checkpoint(said_directory(families / model, tmp_path / model)), ids)
    logits, bound = logits_of(checkpoint, ids)
    assert np.abs(logits - expected).max() <= bound * np.abs(expected).max()


def adding(kind: str, key: str, value: Any) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        getattr(writer, f"add_{kind}")(key, value)

    return change


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("cohere2", adding("uint32", "cohere2.attention.sliding_window_pattern", 3)),
        ("mistral", adding("uint32", "llama.attention.sliding_window", 11)),
        ("mixtral-window", adding("uint32", "llama.attention.sliding_window", 13)),
        ("starcoder2", adding("uint32", "starcoder2.attention.sliding_window", 12)),
    ],
)
def test_what_the_converter_leaves_out_is_read_where_it_is(
    model: str, change: Change, families: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_model(families / model, tmp_path / "model.gguf", change))
    check_same(checkpoint, open_checkpoint(families / model))


@pytest.mark.parametrize(
    ("model", "kind", "name"),
    [
        ("qwen2", "qwen2", "qwen2vl"),
        ("qwen3", "qwen3", "qwen3vl"),
        ("qwen3-moe", "qwen3_moe", "qwen3vlmoe"),
        ("mistral-full", "mistral", "mistral3"),
    ],
)
def test_a_file_of_a_text_model_for_images_is_the_text_model(
    model: str, kind: str, name: str, families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NAMES, kind, name)

    def with_images(writer: gguf.GGUFWriter) -> None:
        if "vl" in name:
            writer.add_rope_dimension_sections([2, 3, 3, 0])
            writer.add_num_deepstack_layers(3)

    checkpoint = open_checkpoint(write_model(families / model, tmp_path / "model.gguf", with_images))
    expected = open_checkpoint(families / model)
    family = checkpoint.config.family if name == "mistral3" else expected.config.family
    assert checkpoint.config == replace(expected.config, family=family)
    assert set(checkpoint.tensors) == set(expected.tensors)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("exaone-moe", "exaone-moe"),
        ("glm4-moe-lite", "deepseek2"),
        ("nemotron-h-moe", "nemotron_h_moe"),
        ("qwen3_5", "qwen35"),
    ],
)
def test_blocks_that_predict_further_tokens_are_left_out(model: str, name: str, families: Path, tmp_path: Path) -> None:
    def with_another_block(writer: gguf.GGUFWriter) -> None:
        (metadata,) = writer.kv_data
        for key, value in (("block_count", metadata[f"{name}.block_count"].value + 1), ("nextn_predict_layers", 1)):
            metadata.pop(f"{name}.{key}", None)
            writer.add_uint32(f"{name}.{key}", value)

    checkpoint = open_checkpoint(write_model(families / model, tmp_path / "model.gguf", with_another_block))
    check_same(checkpoint, open_checkpoint(families / model))


def test_the_largest_llama_4_does_not_normalise_queries_and_keys() -> None:
    for count, has_norm in ((16, True), (128, False)):
        settings = ARCHITECTURES["llama4"].special(file_metadata(expert_count=count, attention__sliding_window=None))
        assert settings["use_qk_norm"] is has_norm


def test_a_gemma3_says_which_layers_see_a_window(families: Path, tmp_path: Path) -> None:
    windows = [True, False, True]
    change = adding("array", "gemma3.attention.sliding_window_pattern", windows)
    checkpoint = open_checkpoint(write_model(families / "gemma3-cap", tmp_path / "model.gguf", change))
    assert [attention.window for attention in checkpoint.config.attentions] == [12, None, 12]


def joined(writer: gguf.GGUFWriter) -> None:
    """Join queries, keys and values, as llama.cpp's converter does if it is asked to."""
    (tensors,) = writer.tensors
    blocks = {name.rpartition(".attn_q.")[0] for name in tensors if ".attn_q." in name}
    for block in blocks:
        for kind in ("weight", "bias"):
            parts: list[Any] = [tensors.pop(f"{block}.attn_{part}.{kind}").tensor for part in "qkv"]
            writer.add_tensor(f"{block}.attn_qkv.{kind}", np.concatenate(parts))


def test_queries_keys_and_values_may_be_joined(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(families / "llama-bias", tmp_path / "model.gguf", joined))
    check_same(checkpoint, open_checkpoint(families / "llama-bias"))


def test_the_gates_of_experts_may_be_joined_with_what_they_multiply(families: Path, tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        (tensors,) = writer.tensors
        for block in ("blk.0", "blk.1"):
            parts: list[Any] = [tensors.pop(f"{block}.ffn_{part}_exps.weight").tensor for part in ("gate", "up")]
            writer.add_tensor(f"{block}.ffn_gate_up_exps.weight", np.concatenate(parts, axis=1))

    checkpoint = open_checkpoint(write_model(families / "qwen3-moe", tmp_path / "model.gguf", change))
    check_same(checkpoint, open_checkpoint(families / "qwen3-moe"))


def test_each_expert_of_a_quantized_stack_is_read_by_itself(families: Path, tmp_path: Path) -> None:
    stack = "blk.1.ffn_up_exps.weight"
    path = write_model(families / "mixtral-window", tmp_path / "model.gguf", kinds={stack: "Q4_0"})
    (raw,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == stack)
    whole, tensors = gguf.dequantize(raw.data, raw.tensor_type), open_checkpoint(path).tensors
    for expert in range(6):
        name = f"model.layers.1.block_sparse_moe.experts.{expert}.w3.weight"
        np.testing.assert_array_equal(tensors[name], whole[expert])


def apart(writer: gguf.GGUFWriter) -> None:
    """Store the keys and values of latents as older files have them, and the sizes of whole heads under other names."""
    (tensors,) = writer.tensors
    (metadata,) = writer.kv_data
    for block in ("blk.0", "blk.1"):
        parts: list[Any] = [tensors.pop(f"{block}.attn_{part}_b.weight").tensor for part in "kv"]
        both = np.concatenate([parts[0].swapaxes(1, 2), parts[1]], axis=1)
        writer.add_tensor(f"{block}.attn_kv_b.weight", both.reshape(-1, both.shape[-1]))
    for part in ("key", "value"):
        metadata[f"deepseek2.attention.{part}_length"] = metadata.pop(f"deepseek2.attention.{part}_length_mla")


@pytest.mark.parametrize("model", ["deepseek-v2-group", "deepseek-v3"])
def test_keys_and_values_of_latents_may_be_stored_together(model: str, families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(families / model, tmp_path / "model.gguf", apart))
    check_same(checkpoint, open_checkpoint(families / model))


def test_experts_of_gpt_oss_may_be_mxfp4(families: Path, tmp_path: Path) -> None:
    stacks = [f"blk.1.ffn_{part}_exps.weight" for part in ("gate", "up")]
    path = write_model(families / "gpt-oss", tmp_path / "model.gguf", kinds=dict.fromkeys(stacks, "MXFP4"))
    raw = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    array = np.asarray(open_checkpoint(path).tensors["model.layers.1.mlp.experts.gate_up_proj"])
    assert array.dtype == jnp.bfloat16
    for turn, stack in enumerate(stacks):
        expected = gguf.dequantize(raw[stack].data, raw[stack].tensor_type)
        np.testing.assert_array_equal(array[:, :, turn::2].astype(np.float32), expected.swapaxes(1, 2))


def test_every_architecture_is_one_of_the_librarys_and_of_a_family_of_ours() -> None:
    names = gguf.MODEL_ARCH_NAMES.values()
    for name, architecture in ARCHITECTURES.items():
        assert name in names
        assert architecture.family in FAMILIES


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        ("granite", adding("bool", "granite.rope.scaling.finetuned", False), "Granite without positions"),
        ("exaone-moe", adding("uint32", "exaone-moe.expert_shared_feed_forward_length", 8), "expert_shared_feed"),
        ("hunyuan-moe", adding("uint32", "hunyuan-moe.expert_shared_count", 2), "num_shared_expert 2"),
        ("llama4", adding("uint32", "llama4.attention.sliding_window", 0), "attention.sliding_window 0"),
        ("qwen2", adding("uint32", "qwen2.attention.sliding_window", 8), "attention.sliding_window 8"),
        ("cohere2", adding("float32", "cohere2.rope.freq_base_swa", 5.0), "rope.freq_base_swa 5.0"),
        ("mixtral", adding("bool", "llama.expert_weights_norm", False), "expert_weights_norm False"),
        ("llama-tied", adding("uint32", "llama.expert_group_count", 4), "expert_group_count 4"),
        ("deepseek-v2", adding("uint32", "deepseek2.expert_gating_func", 4), "expert_gating_func 4"),
        ("llama-tied", adding("uint32", "llama.nextn_predict_layers", 1), "nextn_predict_layers 1"),
        ("deepseek-v2", adding("bool", "deepseek2.expert_weights_norm", True), "norm_topk_prob True"),
    ],
)
def test_what_a_family_has_not_is_refused_by_name(
    model: str, change: Change, message: str, families: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(write_model(families / model, tmp_path / "model.gguf", change))


def test_a_key_that_is_not_known_is_warned_of(families: Path, tmp_path: Path) -> None:
    path = write_model(families / "llama-tied", tmp_path / "model.gguf", adding("float32", "llama.new_trick", 0.5))
    with pytest.warns(RuntimeWarning, match=r"unknown keys .*: new_trick"):
        open_checkpoint(path)


def file_metadata(**changes: Any) -> FileMetadata:
    """Make the metadata of a file without tensors."""
    sizes = {"block_count": 12, "embedding_length": 96, "attention.head_count": 4, "attention.sliding_window": 8}
    values = sizes | {key.replace("__", "."): value for key, value in changes.items()}
    return FileMetadata(Keys(values, "here"), GGUFFile((), {}, {}, {}))


@pytest.mark.parametrize(("name", "period"), [("gemma2", 2), ("olmo2", 4), ("cohere2", 4), ("gemma3", 6)])
def test_of_a_period_of_layers_the_last_sees_everything(name: str, period: int) -> None:
    for expected, of_file in ((period, {}), (3, {"attention__sliding_window_pattern": 3})):
        types = ARCHITECTURES[name].special(file_metadata(logit_scale=0.5, **of_file))["layer_types"]
        assert [place for place, kind in enumerate(types) if kind == "full_attention"] == [
            *range(expected - 1, 12, expected)
        ]


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_divide_scores_by_another_number(name: str, layers: int) -> None:
    for block_count, scalar in ((26, 32), (layers, 24)):
        settings = ARCHITECTURES[name].special(file_metadata(block_count=block_count, attention__key_length=32))
        assert settings["query_pre_attn_scalar"] == scalar


def test_a_part_of_the_head_that_turns_is_read_to_the_number() -> None:
    inexact = 0
    for head_dim in range(2, 258, 2):
        for dims in range(2, head_dim + 2, 2):
            share = rope_parameters(file_metadata(attention__key_length=head_dim, rope__dimension_count=dims), "here")[
                "partial_rotary_factor"
            ]
            assert int(head_dim * share) == dims
            inexact += int(head_dim * (dims / head_dim)) != dims
    assert inexact > 0, "it was not needed to be careful"


def test_more_than_the_head_cannot_turn() -> None:
    with pytest.raises(CheckpointError, match=r"here: rope\.dimension_count must be at most 24, .* got 26"):
        rope_parameters(file_metadata(rope__dimension_count=26), "here")


def parts_of(families: Path, tmp_path: Path) -> list[Path]:
    """Write a model into files of ten tensors at most."""
    write_model(families / "qwen3", tmp_path / "model.gguf", split=10)
    return sorted(tmp_path.glob("model-*.gguf"))


def test_a_model_in_several_files_is_opened_by_any_of_them(families: Path, tmp_path: Path) -> None:
    parts = parts_of(families, tmp_path)
    assert parts[0].name == "model-00001-of-00004.gguf"
    for part in parts:
        checkpoint = open_checkpoint(part)
        assert checkpoint.files == tuple(parts)
        check_same(checkpoint, open_checkpoint(families / "qwen3"))


def test_a_file_of_several_that_is_missing_is_named(families: Path, tmp_path: Path) -> None:
    parts = parts_of(families, tmp_path)
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"split into 4 files\. Missing are model-00003-of-00004\.gguf"):
        open_checkpoint(parts[0])


def test_a_file_of_several_under_another_name_says_how_it_is_called(families: Path, tmp_path: Path) -> None:
    first = parts_of(families, tmp_path)[0].rename(tmp_path / "first.gguf")
    with pytest.raises(CheckpointError, match=r"one of 4 files .* must be NAME-00001-of-00004\.gguf"):
        open_checkpoint(first)


def test_a_file_in_the_place_of_another_is_told(families: Path, tmp_path: Path) -> None:
    parts = parts_of(families, tmp_path)
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(
        CheckpointError, match=r"00002-of-00004\.gguf: by its name it must be part 1 of 4, but it is part 2 of 4"
    ):
        open_checkpoint(parts[0])
