"""A Hugging Face directory is read as it is, and each kind of broken one has its message."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.core.errors import CheckpointError, ModelNotFound, UnsupportedModel
from rekindle.core.models.config import Rope
from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import check_shapes
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families import llama, qwen3
from rekindle.formats.families.nearest import EMBEDDING, SIZES, nearest
from rekindle.formats.families.reading import Family
from rekindle.formats.families.registry import FAMILIES, parse_config
from tests.families import MODELS

READ = ("llama-tied", "llama3-rope", "qwen2", "qwen3")
Copy = Callable[[str], Path]


@pytest.fixture
def copy(families: Path, tmp_path: Path) -> Copy:
    """Return a function to copy a family's directory, for a test to break."""

    def make(family: str) -> Path:
        directory = Path(shutil.copytree(families / family, tmp_path / family))
        for path in [directory, *directory.iterdir()]:
            path.chmod(0o700)
        return directory

    return make


def edit(path: Path, changes: dict[str, Any], remove: tuple[str, ...] = ()) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if key not in remove}))


def shard(directory: Path, count: int) -> list[str]:
    """Split model.safetensors into `count` files with an index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = [f"model-{place + 1:05}-of-{count:05}.safetensors" for place in range(count)]
    places = {tensor: names[place % count] for place, tensor in enumerate(tensors)}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor in tensors if places[tensor] == name}, directory / name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return names


@pytest.mark.parametrize("family", READ)
def test_every_tensor_is_read_as_it_was_written(family: str, families: Path) -> None:
    checkpoint = open_checkpoint(families / family)
    stored = load_file(families / family / "model.safetensors")
    assert set(checkpoint.tensors) == set(expected_shapes(checkpoint.config)) == set(stored)
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(tensor, stored[name])
    assert checkpoint.tokenizer is None
    assert checkpoint.eos_ids == {2}


def test_tensors_may_be_read_from_several_threads(families: Path) -> None:
    tensors = open_checkpoint(families / "qwen2").tensors
    names = list(tensors) * 20
    with ThreadPoolExecutor(4) as pool:
        for name, tensor in zip(names, pool.map(tensors.__getitem__, names), strict=True):
            np.testing.assert_array_equal(tensor, tensors[name])


def test_switches_come_from_the_family_and_the_config(families: Path) -> None:
    configs = {family: open_checkpoint(families / family).config for family in READ}
    assert [configs[family].tied_embeddings for family in READ] == [True, False, False, False]
    attention = [configs[family].attentions[0] for family in READ]
    assert [each.qkv_bias for each in attention] == [False, False, True, False]
    assert [each.head_norm is not None for each in attention] == [False, False, False, True]
    assert [each.head_dim for each in attention] == [16, 16, 16, 32]


def test_shards_are_one_model(copy: Copy, families: Path) -> None:
    directory = copy("qwen3")
    shard(directory, 3)
    whole, parts = open_checkpoint(families / "qwen3"), open_checkpoint(directory)
    assert set(whole.tensors) == set(parts.tensors)
    for name in whole.tensors:
        np.testing.assert_array_equal(whole.tensors[name], parts.tensors[name])


def test_bfloat16_and_float16_stay_what_they_are(copy: Copy) -> None:
    directory = copy("llama-tied")
    stored = {
        name: tensor.astype(np.float16 if tensor.ndim == 1 else ml_dtypes.bfloat16)
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    save_file(stored, directory / "model.safetensors")
    tensors = {name: np.asarray(tensor) for name, tensor in open_checkpoint(directory).tensors.items()}
    assert tensors["model.norm.weight"].dtype == np.float16
    assert tensors["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, stored[name])


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_is_read_in_the_older_spelling_too(key: str, copy: Copy, families: Path) -> None:
    directory = copy("llama3-rope")
    numbers = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}
    older = {"rope_theta": 500000.0, "rope_scaling": numbers | {key: "llama3"}}
    edit(directory / "config.json", older, remove=("rope_parameters",))
    config = open_checkpoint(directory).config
    assert config == open_checkpoint(families / "llama3-rope").config
    assert {attention.rope for attention in config.attentions} == {Rope(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))}


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(7, 2, {7, 2}), ([5, 6, 7], 2, {5, 6, 7, 2}), (None, [2, 3], {2, 3}), (None, 4, {4}), (None, None, set())],
)
def test_eos_ids_come_from_generation_config_and_config_together(
    generation: Any, config: Any, expected: set[int], copy: Copy
) -> None:
    directory = copy("qwen2")
    edit(directory / "generation_config.json", {"eos_token_id": generation})
    edit(directory / "config.json", {"eos_token_id": config})
    assert open_checkpoint(directory).eos_ids == expected


def test_the_tokenizers_own_end_token_ends_answers_too(copy: Copy, byte_tokenizer: Tokenizer) -> None:
    directory = copy("llama-tied")
    edit(directory / "generation_config.json", {"eos_token_id": 2})
    byte_tokenizer.backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "z"}))
    assert open_checkpoint(directory).eos_ids == {2, byte_tokenizer.backend.token_to_id("z")}


def test_a_head_of_its_own_is_used_whatever_the_config_says(copy: Copy) -> None:
    """Compare the answer with the answer of the same file under an untied config."""
    directory = copy("llama-tied")
    tensors = load_file(directory / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.copy()}, directory / "model.safetensors")
    assert open_checkpoint(directory).config.tied_embeddings, "an equal head is no other"
    head = embedding[::-1].copy()
    save_file({**tensors, "lm_head.weight": head}, directory / "model.safetensors")
    with pytest.warns(RuntimeWarning, match="separate head"):
        checkpoint = open_checkpoint(directory)
    assert not checkpoint.config.tied_embeddings
    np.testing.assert_array_equal(checkpoint.tensors["lm_head.weight"], head)
    edit(directory / "config.json", {"tie_word_embeddings": False})
    assert open_checkpoint(directory).config == checkpoint.config


def test_generation_config_may_be_absent(copy: Copy) -> None:
    directory = copy("qwen2")
    (directory / "generation_config.json").unlink()
    checkpoint = open_checkpoint(directory)
    assert checkpoint.eos_ids == {2}
    assert checkpoint.generation_config == {}


def test_generation_config_is_what_its_file_says_and_never_from_config(copy: Copy) -> None:
    directory = copy("qwen2")
    settings = {"do_sample": True, "temperature": 0.7, "top_k": None, "eos_token_id": [2]}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    edit(directory / "config.json", {"top_p": 0.5, "temperature": 0.1})
    assert open_checkpoint(directory).generation_config == settings


def test_a_missing_output_matrix_is_an_error_unless_tied(copy: Copy) -> None:
    directory = copy("llama-tied")
    edit(directory / "config.json", {"tie_word_embeddings": False})
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight.*tie_word_embeddings is false"):
        open_checkpoint(directory)


def test_a_missing_output_matrix_is_named_as_in_its_family(families: Path) -> None:
    settings = json.loads((families / "gpt-neox" / "config.json").read_text())
    config = parse_config(settings | {"tie_word_embeddings": False}, "config.json")
    shapes = {name: shape for name, shape in expected_shapes(config).items() if name != "embed_out.weight"}
    with pytest.raises(
        CheckpointError, match=r"missing embed_out\.weight; its config says tie_word_embeddings is false"
    ):
        check_shapes(shapes, config, "it")


@pytest.mark.parametrize("keep", [0, 5, 100, 5000, -1])
def test_a_truncated_file_is_named(keep: int, copy: Copy) -> None:
    path = copy("qwen3") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*truncated or corrupt"):
        open_checkpoint(path.parent)


@pytest.mark.parametrize("header", [b"{", b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1]}}', b"\xff\xfe"])
def test_a_corrupt_header_is_an_error(header: bytes, copy: Copy) -> None:
    path = copy("qwen3") / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        open_checkpoint(path.parent)


def test_a_missing_shard_is_named(copy: Copy) -> None:
    directory = copy("qwen2")
    names = shard(directory, 2)
    (directory / names[1]).unlink()
    with pytest.raises(CheckpointError, match=f"shard {names[1]} of .* is missing"):
        open_checkpoint(directory)


def test_a_shard_without_what_the_index_places_there_is_named(copy: Copy) -> None:
    directory = copy("qwen2")
    names = shard(directory, 2)
    shutil.copy(directory / names[0], directory / names[1])
    with pytest.raises(CheckpointError, match=f"{names[1]}: missing "):
        open_checkpoint(directory)


def test_a_missing_tensor_is_named(copy: Copy) -> None:
    path = copy("qwen2") / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.self_attn.k_proj.bias"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"missing model\.layers\.1\.self_attn\.k_proj\.bias\. Fetch the model"):
        open_checkpoint(path.parent)


def test_a_family_that_the_weights_do_not_have_is_asked_about(families: Path) -> None:
    family = Family("Qwen2ForCausalLM", qwen3.read)
    with pytest.raises(
        CheckpointError, match=r"missing .*q_norm.*Check that the given family describes Qwen2ForCausalLM"
    ):
        open_checkpoint(families / "qwen2", family=family)


def test_a_wrong_shape_is_told_with_the_right_one(copy: Copy) -> None:
    directory = copy("qwen2")
    edit(directory / "config.json", {"intermediate_size": 161})
    with pytest.raises(CheckpointError, match=r"gate_proj.weight must have the shape \(161, 64\).*got \(160, 64\)"):
        open_checkpoint(directory)


def test_a_dtype_that_is_not_supported_is_named(copy: Copy) -> None:
    path = copy("qwen2") / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float64)
    save_file(tensors, path)
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is F64, supported are F32, F16, BF16"):
        open_checkpoint(path.parent)


def test_layers_and_towers_unknown_to_the_config_are_told(copy: Copy) -> None:
    directory = copy("qwen2")
    edit(directory / "config.json", {"num_hidden_layers": 1}, remove=("layer_types",))
    with pytest.warns(
        RuntimeWarning, match=r"its config has 1 layers, and its weights have 3: the layers from 1 on are"
    ):
        open_checkpoint(directory)
    directory = copy("qwen3")
    tensors = load_file(directory / "model.safetensors")
    tensors["vision_tower.encoder.weight"] = np.zeros((2, 2), np.float32)
    save_file(tensors, directory / "model.safetensors")
    with pytest.warns(RuntimeWarning, match=r"its weights have a vision tower .*the tower is left out"):
        open_checkpoint(directory)


def test_a_directory_without_weights_says_what_is_read(copy: Copy) -> None:
    directory = copy("qwen2")
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"so it has no weights\. Fetch the model again"):
        open_checkpoint(directory)


@pytest.mark.parametrize("name", ["model.fp16.safetensors", "pytorch_model.safetensors"])
def test_a_single_file_of_another_name_is_the_model(name: str, copy: Copy) -> None:
    directory = copy("qwen2")
    (directory / "model.safetensors").rename(directory / name)
    for other in ("consolidated.safetensors", "adapter_model.safetensors"):
        (directory / other).write_bytes(b"")
    assert open_checkpoint(directory).files == (directory / name,)


def test_shards_without_an_index_are_one_model_if_they_are_all_there(copy: Copy, families: Path) -> None:
    directory = copy("qwen3")
    names = shard(directory, 3)
    (directory / "model.safetensors.index.json").unlink()
    assert set(open_checkpoint(directory).tensors) == set(open_checkpoint(families / "qwen3").tensors)
    (directory / names[1]).unlink()
    with pytest.raises(CheckpointError, match=f"the shard {names[1]} is missing"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.safetensors", "b.safetensors"], r"several models \(a\.safetensors, b\.safetensors\) and no .*index"),
        (["adapter_model.safetensors"], r"has an adapter .* without its model: .*merge_and_unload"),
        (["consolidated.safetensors"], r"Mistral's own layout .*: fetch the files model\*\.safetensors"),
        (["pytorch_model.bin"], r"no safetensors, but pytorch_model\.bin: .* may run code, .*save_pretrained"),
    ],
)
def test_files_that_are_not_the_weights_of_one_model_are_named(names: list[str], message: str, copy: Copy) -> None:
    directory = copy("qwen2")
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").unlink()
    for name in names:
        (directory / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(directory)


def test_a_directory_without_config_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"it has no config\.json; .*pass its path: .*model\.gguf"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_config.json", {"base_model_name_or_path": "me/base"}, r"an adapter of me/base: .*merge_and_unload"),
        ("params.json", {}, r"Mistral's or Meta's own code \(params\.json\): fetch config\.json"),
        ("model_index.json", {}, "a pipeline of models for images"),
    ],
)
def test_a_directory_in_another_format_says_what_it_is(
    name: str, content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ModelNotFound, match=rf"it has no config\.json; .*{message}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_config_that_is_no_json_object_is_an_error(content: str, name: str, copy: Copy) -> None:
    directory = copy("qwen2")
    (directory / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"/{name}: "):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 8},
        {"no_rope_layers": [1, 0]},
        {"attention_multiplier": 0.5},
        {"residual_multiplier": 0.2},
        {"logits_scaling": 8.0},
    ],
)
def test_a_family_of_ones_own_does_not_silence_what_the_decoder_lacks(changes: dict[str, Any], copy: Copy) -> None:
    directory = copy("llama-tied")
    edit(directory / "config.json", {"architectures": ["MistralForCausalLM"], **changes})
    with pytest.raises(UnsupportedModel, match=next(iter(changes))):
        open_checkpoint(directory, family=Family("MistralForCausalLM", llama.read))


def test_keys_that_nobody_knows_are_told_and_those_without_effect_are_not(copy: Copy) -> None:
    directory = copy("llama-tied")
    edit(directory / "config.json", {"mystery_multiplier": 3, "attention_dropout": 0.1})
    with pytest.warns(RuntimeWarning, match=r"config\.json has unknown keys .* of the model: mystery_multiplier$"):
        open_checkpoint(directory)


PUBLISHED: dict[str, dict[str, Any]] = {
    "hunyuan-dense": {"use_qk_norm": True},
    "cohere2": {
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
    },
    "cohere": {"model_max_length": 8192},
    "phi3": {"attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False},
    "starcoder2": {
        "activation_function": "gelu_pytorch_tanh",
        "attention_softmax_in_fp32": True,
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
    },
    "llama-tied": {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {}},
    "llama-yarn": {
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
            "finetuned": True,
        }
    },
}
"""Keys of published files, which transformers does not save: each names the family."""
OTHERWISE: dict[str, dict[str, Any]] = {
    "hunyuan-dense": {"use_qk_norm": False},
    "cohere2": {"use_parallel_block": False},
    "phi3": {"lm_head_bias": True},
    "starcoder2": {"norm_type": "rms"},
    "llama-tied": {"rope_interleaved": True},
}


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.filterwarnings("error")
def test_a_config_as_published_opens_without_a_word(model: str, copy: Copy) -> None:
    directory = copy(model)
    expected = open_checkpoint(directory).config
    edit(directory / "config.json", PUBLISHED[model])
    assert open_checkpoint(directory).config == expected


@pytest.mark.parametrize("model", OTHERWISE)
def test_a_key_that_says_what_the_family_is_not_is_refused(model: str, copy: Copy) -> None:
    directory = copy(model)
    edit(directory / "config.json", OTHERWISE[model])
    with pytest.raises(UnsupportedModel, match=next(iter(OTHERWISE[model]))):
        open_checkpoint(directory)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.filterwarnings("error", "ignore:.*separate head")
def test_every_key_of_every_family_is_known(model: str, families: Path) -> None:
    assert open_checkpoint(families / model).config.num_layers > 0


def test_values_that_change_nothing_are_no_reason_to_refuse_a_model(copy: Copy, families: Path) -> None:
    directory = copy("llama-tied")
    neutral = {"sliding_window": None, "no_rope_layers": [1, 1], "logits_scaling": 1.0, "num_experts": 0}
    edit(directory / "config.json", neutral)
    assert open_checkpoint(directory).config == open_checkpoint(families / "llama-tied").config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["InternLM9ForCausalLM"]},
            r"InternLM9ForCausalLM\) is not supported\. The nearest that opens: \S.*B\)\. If its .*family=Family",
        ),
        ({"architectures": ["Qwen4ForCausalLM"]}, r"The nearest that opens: Qwen3 \(0\.6B to 32B\)\. If its layers"),
        (
            {"architectures": ["AlbertModel"]},
            r"it is an encoder.* opens: Qwen3-Embedding .*\. A family= of your own does not help",
        ),
        (
            {"architectures": ["Qwen3_9ForCausalLM"], "layer_types": ["linear_attention", "full_attention"]},
            r"Qwen3_9ForCausalLM\) is not supported\. The nearest that opens: Qwen3\.5 \(0\.8B to 27B\)\. If its",
        ),
        (
            {"architectures": ["KimiLinear9ForConditionalGeneration"], "text_config": {"linear_attn_config": {"a": 1}}},
            "it has layers of linear attention, which keep a state",
        ),
        ({"architectures": ["JambaForCausalLM"]}, "it has Mamba-1 layers"),
        ({"architectures": ["My9ForCausalLM"], "mamba_dt_rank": 16}, "it has Mamba-1 layers"),
        ({"architectures": ["Zamba2ForCausalLM"]}, r"it shares a layer of attention .* opens: Granite 4 \(3B"),
        ({"architectures": ["DeepseekV9ForCausalLM"], "index_topk": 16}, r"an indexer\. .*: DeepSeek-R1's distilled"),
        ({"architectures": ["MyT5ForConditionalGeneration"], "is_encoder_decoder": True}, "an encoder beside its"),
        ({"architectures": ["LLaDAModelLM"]}, "generates by diffusion"),
        ({"architectures": ["MyForCausalLM"], "attn_config": {"alibi": True}}, "has ALiBi positions"),
        ({"architectures": ["MyForCausalLM"], "cross_attention_layers": [3]}, "has cross attention"),
        ({"architectures": None, "model_type": None}, "names no family: take the file from the model's repository"),
        ({"hidden_act": "xielu"}, "xielu"),
        (
            {"quantization_config": {"quant_method": "aqlm", "bits": 2}},
            "quantized by aqlm in 2 bits are not supported, but",
        ),
        ({"quantization_config": {"nbits": 2}}, "quantized by an unnamed method are not supported"),
        (
            {"compression_config": {"format": "marlin-24", "config_groups": {}}},
            "format 'marlin-24' are not supported, but",
        ),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
        ({"rope_parameters": {"rope_type": "default", "twist": 0.5}}, "twist is not supported"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"]}, "linear_attention"),
        ({"sliding_window": 8}, "sliding_window 8"),
        ({"final_logit_softcapping": 30.0}, r"final_logit_softcapping 30\.0 is not supported"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"embedding_multiplier": 12}, "embedding_multiplier 12"),
        ({"num_local_experts": 8}, "num_local_experts 8"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str, copy: Copy) -> None:
    directory = copy("llama3-rope")
    edit(directory / "config.json", changes)
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(directory)


def test_the_nearest_models_are_of_families_that_open() -> None:
    assert SIZES.keys() <= FAMILIES.keys()


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("GPTNeoForCausalLM", "gpt_neox"),
        ("GPTBigCodeForCausalLM", "gpt2"),
        ("CodeGenForCausalLM", "gptj"),
        ("XGLMForCausalLM", "opt"),
        ("FalconForCausalLM", "gpt_neox"),
        ("MiniMaxM3ForCausalLM", "minimax_m2"),
        ("Dots3ForCausalLM", "dots1"),
        ("FalconH2ForCausalLM", "falcon_h1"),
        ("Lfm3ForCausalLM", "lfm2"),
        ("NemotronHPuzzleForCausalLM", "nemotron_h"),
        ("Qwen3_9MoeForCausalLM", "qwen3_5_moe_text"),
        ("HYV3ForCausalLM", "hunyuan_v1_moe"),
        ("ExaoneForCausalLM", "exaone4"),
        ("Ernie4_5_VLMoeForConditionalGeneration", "ernie4_5_moe"),
        ("Gemma3nForCausalLM", "gemma4_text"),
        ("GlmMoeDsaForCausalLM", "glm4_moe"),
        ("InternLM2ForCausalLM", "llama"),
        ("DbrxForCausalLM", "mixtral"),
        ("CohereCompassForConditionalGeneration", "cohere2"),
        ("AlbertModel", EMBEDDING),
    ],
)
def test_the_nearest_model_is_the_one_that_is_most_alike(name: str, family: str) -> None:
    assert nearest([name]) == SIZES.get(family, family)


@pytest.mark.parametrize("names", [["Qwen4ForCausalLM"], ["AlbertModel"], ["MyForCausalLM"], ["RWKV7ForCausalLM"]])
def test_a_refusal_names_one_family_and_not_all(names: list[str], copy: Copy) -> None:
    directory = copy("llama3-rope")
    edit(directory / "config.json", {"architectures": names})
    with pytest.raises(UnsupportedModel) as raised:
        open_checkpoint(directory)
    assert len(str(raised.value).removeprefix(str(directory))) < 400
    assert str(raised.value).count("ForCausalLM") <= 1


def test_text_has_the_same_place_in_each_section_of_its_rope(copy: Copy) -> None:
    directory = copy("qwen2")
    plain = open_checkpoint(directory).config
    rope = plain.attentions[0].rope
    assert rope is not None
    for kind in ({"type": "mrope"}, {"rope_type": "default"}):
        scaling = {**kind, "mrope_section": [2, 3, 3], "rope_theta": rope.theta}
        edit(directory / "config.json", {"rope_parameters": None, "rope_scaling": scaling})
        assert open_checkpoint(directory).config == plain


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 3}, {"hidden_size": "64"}, {"head_dim": -16}])
def test_numbers_that_make_no_model_are_an_error(changes: dict[str, Any], copy: Copy) -> None:
    directory = copy("llama3-rope")
    edit(directory / "config.json", changes)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(directory)


@pytest.mark.parametrize("model", ["", "no-such-model", "./no/such/place", "a/b/c"])
def test_a_name_of_nothing_says_what_is_accepted(model: str) -> None:
    with pytest.raises(ModelNotFound, match=r"(?s)smollm2-135m-instruct.*owner/name.*\.gguf.*config\.json"):
        open_checkpoint(model)


def test_a_weight_file_alone_says_to_give_its_directory(families: Path) -> None:
    with pytest.raises(ModelNotFound, match="pass its directory instead"):
        open_checkpoint(families / "qwen2" / "model.safetensors")
