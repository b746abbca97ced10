"""The text model of a checkpoint with several models opens as if it were alone, whatever its names are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import ExpertsConfig, ModelConfig
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import tensors_of
from rekindle.formats.families import qwen3
from rekindle.formats.families.reading import Family
from rekindle.formats.families.registry import parse_config
from rekindle.formats.families.wrapped import end_tokens

Tensors = dict[str, np.ndarray[Any, Any]]
OUTER = {"architectures": ["MadeUpForConditionalGeneration"], "model_type": "made_up", "vision_config": {"depth": 1}}
TOWERS = {
    name: np.zeros((2, 2), np.float32)
    for name in (
        "model.visual.blocks.0.attn.table",
        "vision_tower.layers.0.norm.weight",
        "multi_modal_projector.linear.weight",
        "mtp.norm.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
    )
}


def write(directory: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def flat(families: Path, model: str = "qwen3") -> tuple[dict[str, Any], Tensors]:
    return json.loads((families / model / "config.json").read_text()), load_file(families / model / "model.safetensors")


def nested(config: dict[str, Any], key: str = "text_config", **outer: Any) -> dict[str, Any]:
    """Nest a config without its architectures in one for several models."""
    inner = {name: value for name, value in config.items() if name != "architectures"}
    return {**OUTER, key: inner, **outer}


def renamed(tensors: Tensors, text: str, head: str) -> Tensors:
    return {
        head + name.removeprefix("lm_head.")
        if name.startswith("lm_head.")
        else text + name.removeprefix("model."): each
        for name, each in tensors.items()
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("model.language_model.", "lm_head."),
        ("model.language_model.", "model.language_model.lm_head."),
        ("model.language_model.model.", "lm_head."),
        ("language_model.model.", "lm_head."),
        ("language_model.model.", "language_model.lm_head."),
        ("model.text_model.", "lm_head."),
        ("text_model.model.", "text_model.lm_head."),
        ("language.model.", "language.lm_head."),
        ("llm.model.", "llm.lm_head."),
        ("model.llm.", "lm_head."),
        ("thinker.model.", "thinker.lm_head."),
        ("model.", "lm_head."),
        ("base_model.model.model.language_model.", "base_model.model.lm_head."),
        ("_orig_mod.language_model.model.", "_orig_mod.language_model.lm_head."),
    ],
)
def test_the_text_model_is_found_by_every_known_prefix(text: str, head: str, families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    expected = open_checkpoint(families / "qwen3")
    directory = write(tmp_path / "model", nested(config), {**renamed(tensors, text, head), **TOWERS})
    checkpoint = open_checkpoint(directory)
    assert checkpoint.config == expected.config
    assert set(checkpoint.tensors) == set(expected.tensors)
    for name in expected.tensors:
        np.testing.assert_array_equal(checkpoint.tensors[name], expected.tensors[name])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("model", "outer_type", "architecture"),
    [
        ("llama4", "llama4", "Llama4ForConditionalGeneration"),
        ("mistral4", "mistral3", "Mistral3ForConditionalGeneration"),
        ("cohere2", "cohere2_vision", "Cohere2VisionForConditionalGeneration"),
        ("lfm2", "lfm2_vl", "Lfm2VlForConditionalGeneration"),
        ("qwen3_5", "qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ("qwen3_5-moe", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
    ],
)
def test_the_text_of_published_models_for_images_opens(
    model: str, outer_type: str, architecture: str, families: Path, tmp_path: Path
) -> None:
    config, tensors = flat(families, model)
    expected = open_checkpoint(families / model)
    whole = nested(config, architectures=[architecture], model_type=outer_type, image_token_index=5, eoi_token_index=6)
    towers = {**TOWERS, "vision_model.patch_embedding.linear.weight": np.zeros((2, 2), np.float32)}
    stored = renamed(tensors, "language_model.model.", "language_model.lm_head.")
    checkpoint = open_checkpoint(write(tmp_path / "model", whole, {**stored, **towers}))
    assert checkpoint.config == expected.config
    assert set(checkpoint.tensors) == set(expected.tensors)
    for name in expected.tensors:
        np.testing.assert_array_equal(checkpoint.tensors[name], expected.tensors[name])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("prefix", ["_orig_mod.", "base_model.model.", "module.", "module._orig_mod."])
def test_prefixes_of_training_are_no_part_of_a_name(prefix: str, families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    expected = open_checkpoint(families / "qwen3")
    prefixed = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    checkpoint = open_checkpoint(write(tmp_path / "model", config, prefixed))
    assert set(checkpoint.tensors) == set(expected.tensors)
    new = tensors_of(prefixed, expected.config, WeightForm(np.dtype("float32")))
    np.testing.assert_array_equal(new["lm_head.weight"], checkpoint.tensors["lm_head.weight"])


def test_modules_that_were_compiled_one_by_one_are_found_too(families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    compiled = {name.replace("self_attn.", "_orig_mod.self_attn."): tensor for name, tensor in tensors.items()}
    assert compiled.keys() != tensors.keys()
    assert set(open_checkpoint(write(tmp_path / "model", config, compiled)).tensors) == set(tensors)


def test_a_prefix_that_is_not_known_is_told_with_both_names(families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    strange = {f"student.net.{name}": tensor for name, tensor in tensors.items()}
    with pytest.raises(
        CheckpointError,
        match=r"missing model\.embed_tokens\.weight, .*; the file has student\.net\.model\.embed_tokens\.weight instead"
        r", whose prefix is not known\. Rename",
    ):
        open_checkpoint(write(tmp_path / "model", config, strange))


def test_adapters_that_are_not_merged_are_refused(families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    q = "model.layers.0.self_attn.q_proj"
    adapted = {
        **{f"base_model.model.{name.replace(q, f'{q}.base_layer')}": tensor for name, tensor in tensors.items()},
        f"base_model.model.{q}.lora_A.default.weight": np.zeros((2, 2), np.float32),
    }
    with pytest.raises(CheckpointError, match=r"adapters \(LoRA\) not merged .* merge_and_unload\(\)"):
        open_checkpoint(write(tmp_path / "model", config, adapted))


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_an_inner_architecture_or_type_names_the_family(key: str, families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    for inner in ({"architectures": ["Qwen3ForCausalLM"], "model_type": "own"}, {"model_type": "qwen3_vl_text"}):
        directory = write(
            tmp_path / "model", nested(config, key, **{key: {**config, "architectures": None, **inner}}), tensors
        )
        assert open_checkpoint(directory).config == open_checkpoint(families / "qwen3").config


def test_a_nested_thinker_has_a_nested_text_model(families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    whole = {**OUTER, "thinker_config": nested(config), "talker_config": {"text_config": {"hidden_size": 3}}}
    directory = write(tmp_path / "model", whole, renamed(tensors, "thinker.model.", "thinker.lm_head."))
    assert open_checkpoint(directory).config == open_checkpoint(families / "qwen3").config


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
def test_older_configs_have_the_keys_of_the_text_model_beside_the_others(
    model_type: str, families: Path, tmp_path: Path
) -> None:
    config, tensors = flat(families, "qwen2")
    older = {**config, **OUTER, "model_type": model_type, "image_token_id": 5, "vision_start_token_id": 6}
    expected = open_checkpoint(families / "qwen2").config
    assert open_checkpoint(write(tmp_path / "model", older, {**tensors, **TOWERS})).config == expected


@pytest.mark.parametrize(
    ("inner", "outer", "tied"),
    [(True, False, True), (False, True, False), (None, True, True), (None, False, False), (None, None, False)],
)
def test_the_inner_flag_of_tied_embeddings_counts_before_the_outer_one(
    inner: bool | None, outer: bool | None, tied: bool, families: Path
) -> None:
    config, _ = flat(families)
    whole = nested({**config, "tie_word_embeddings": inner}, tie_word_embeddings=outer)
    assert parse_config(whole, "config.json").tied_embeddings is tied


@pytest.mark.parametrize(("inner", "outer"), [(False, True), (None, None), (True, False)])
def test_a_file_without_a_head_is_tied_unless_both_flags_say_no(
    inner: bool | None, outer: bool | None, families: Path, tmp_path: Path
) -> None:
    config, tensors = flat(families, "llama-tied")
    tensors.pop("lm_head.weight", None)
    whole = nested({**config, "tie_word_embeddings": inner}, tie_word_embeddings=outer)
    checkpoint = open_checkpoint(write(tmp_path / "model", whole, renamed(tensors, "model.language_model.", "")))
    assert checkpoint.config.tied_embeddings
    assert checkpoint.uses.generates


def test_an_embedding_model_inside_of_another_needs_no_head(families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families, "llama-tied")
    whole = nested({**config, "tie_word_embeddings": False}, tie_word_embeddings=False)
    directory = write(tmp_path / "model", whole, renamed(tensors, "model.language_model.", ""))
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight"):
        open_checkpoint(directory)
    (directory / "modules.json").write_text("[]")
    assert not open_checkpoint(directory).uses.generates


def test_end_tokens_are_those_of_the_whole_and_of_the_text_model() -> None:
    assert end_tokens({"eos_token_id": [1, 2], "text_config": {"eos_token_id": 3}}) == [1, 2, 3]
    assert end_tokens({"eos_token_id": None, "text_config": {}}) == []


def test_keys_around_a_text_model_are_told_unless_they_concern_other_models(families: Path) -> None:
    config, _ = flat(families)
    with pytest.warns(RuntimeWarning, match=r"config\.json has unknown keys .*: mystery_multiplier$"):
        parse_config(nested(config, mystery_multiplier=3, image_token_id=7, projector_hidden_act="gelu"), "config.json")


def test_a_text_model_that_is_not_supported_is_named_by_its_keys(families: Path) -> None:
    config, _ = flat(families)
    with pytest.raises(UnsupportedModel, match=r"config\.json: text_config: hidden_act 'xielu'"):
        parse_config(nested({**config, "hidden_act": "xielu"}), "config.json")


def test_a_model_with_prompts_read_in_both_directions_has_no_windows_for_them(families: Path) -> None:
    config, _ = flat(families, "gemma2")
    text = {**config, "use_bidirectional_attention": True, "sliding_window": 48}
    model = parse_config(nested(text, model_type="paligemma"), "config.json")
    assert model.both_ways
    assert {(attention.window, attention.ahead) for attention in model.attentions} == {(None, None)}
    assert model.max_context == 48


def test_a_family_of_ones_own_reads_the_text_model(families: Path) -> None:
    config, _ = flat(families)
    family = Family("MadeUpForConditionalGeneration", qwen3.read)
    assert parse_config(nested({**config, "model_type": "own"}), "config.json", family).num_layers > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("turned", [True, False], ids=["published", "of newer transformers"])
def test_experts_in_one_tensor_are_read_in_both_layouts(turned: bool, families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families, "qwen3-moe")
    config = {**config, "model_type": "qwen3_vl_moe_text", "norm_topk_prob": False}
    each = open_checkpoint(families / "qwen3-moe")
    stacked, layers = {}, each.config.num_layers
    for prefix in (f"model.layers.{layer}.mlp.experts" for layer in range(layers)):
        parts = [
            {part: tensors.pop(f"{prefix}.{expert}.{part}_proj.weight") for part in ("gate", "up", "down")}
            for expert in range(config["num_experts"])
        ]
        stacked[f"{prefix}.gate_up_proj"] = np.stack([np.concatenate([one["gate"], one["up"]]) for one in parts])
        stacked[f"{prefix}.down_proj"] = np.stack([one["down"] for one in parts])
    stored = {name: np.ascontiguousarray(np.swapaxes(x, 1, 2)) if turned else x for name, x in stacked.items()}
    checkpoint = open_checkpoint(write(tmp_path / "model", nested(config), {**tensors, **stored}))
    for name, expected in stacked.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], expected)
    feed_forward = checkpoint.config.layers[0].feed_forward
    assert isinstance(feed_forward, ExpertsConfig)
    assert feed_forward.router.normalised


@pytest.mark.filterwarnings("error")
def test_a_head_is_used_without_a_word_if_the_flags_disagree(families: Path, tmp_path: Path) -> None:
    config, tensors = flat(families)
    whole = nested({**config, "tie_word_embeddings": True}, tie_word_embeddings=False)
    assert not open_checkpoint(write(tmp_path / "model", whole, tensors)).config.tied_embeddings


@pytest.mark.parametrize(
    ("model_type", "size", "expected"),
    [("gemma4_text", 8, 8), ("gemma4_text", None, None), ("gemma4_text", ..., 256), ("gemma4_unified_text", ..., None)],
)
def test_a_gemma_4_has_token_features_by_its_config_or_by_its_kind(
    model_type: str, size: Any, expected: int | None
) -> None:
    inner = {"model_type": model_type} | ({} if size is ... else {"hidden_size_per_layer_input": size})
    features = parse_config({"model_type": "gemma4", "text_config": inner}, "config.json").features
    assert (features and features.size) == expected


Sizes = tuple[str, int, int, int, int, int]


def sizes(config: ModelConfig) -> Sizes:
    attention = config.attentions[0]
    return config.family, config.num_layers, config.hidden_size, attention.heads, attention.kv_heads, config.vocab_size


GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "vision_use_head": False},
}
MISTRAL_SMALL = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10,
    "model_type": "mistral3",
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "text_config": {
        "attention_dropout": 0.0,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "max_position_embeddings": 131072,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0,
        "sliding_window": None,
        "use_cache": True,
        "vocab_size": 131072,
    },
    "vision_config": {"model_type": "pixtral"},
    "vision_feature_layer": -1,
}
QWEN25_VL = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "image_token_id": 151655,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "video_token_id": 151656,
    "vision_config": {"depth": 32, "spatial_merge_size": 2, "tokens_per_second": 2},
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
    "vision_token_id": 151654,
    "vocab_size": 151936,
}
QWEN3_VL = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "bos_token_id": 151643,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "video_token_id": 151656,
    "vision_config": {"deepstack_visual_indexes": [5, 11, 17]},
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
}
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "ignore_index": -100,
    "image_token_index": 32000,
    "model_type": "llava",
    "pad_token_id": 32001,
    "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "vocab_size": 32064,
    },
    "vision_config": {"model_type": "clip_vision_model"},
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vocab_size": 32064,
}
INTERNVL = {
    "architectures": ["InternVLChatModel"],
    "auto_map": {},
    "downsample_ratio": 0.5,
    "dynamic_image_size": True,
    "force_image_size": 448,
    "llm_config": {
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    },
    "max_dynamic_patch": 12,
    "min_dynamic_patch": 1,
    "model_type": "internvl_chat",
    "pad2square": False,
    "ps_version": "v2",
    "select_layer": -1,
    "template": "internvl2_5",
    "use_backbone_lora": 0,
    "use_llm_lora": 0,
    "use_thumbnail": True,
    "vision_config": {"hidden_size": 1024},
}
VOXTRAL = {
    "architectures": ["VoxtralForConditionalGeneration"],
    "audio_config": {"model_type": "voxtral_encoder"},
    "audio_token_id": 24,
    "hidden_size": 3072,
    "model_type": "voxtral",
    "projector_hidden_act": "gelu",
    "text_config": {
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 100000000.0,
        "vocab_size": 131072,
    },
    "vocab_size": 131072,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GEMMA3_4B, ("gemma3_text", 34, 2560, 8, 4, 262208)),
        (MISTRAL_SMALL, ("mistral", 40, 5120, 32, 8, 131072)),
        (QWEN25_VL, ("qwen2", 36, 2048, 16, 2, 151936)),
        (QWEN3_VL, ("qwen3", 36, 2560, 32, 8, 151936)),
        (LLAVA, ("llama", 32, 4096, 32, 32, 32064)),
        (INTERNVL, ("qwen3", 28, 2048, 16, 8, 151936)),
        (VOXTRAL, ("llama", 30, 3072, 32, 8, 131072)),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else "",
)
def test_configs_as_published_are_read_without_a_word(config: dict[str, Any], expected: Sizes) -> None:
    assert sizes(parse_config(config, "config.json")) == expected


def test_gemma_3_has_the_defaults_of_transformers_code() -> None:
    config = parse_config(GEMMA3_4B, "config.json")
    assert (config.attentions[0].head_dim, config.max_context, config.tied_embeddings) == (256, 131072, True)
    assert [attention.window for attention in config.attentions[:6]] == [1024] * 5 + [None]
    assert {attention.rope.theta for attention in config.attentions if attention.rope} == {1_000_000.0, 10_000.0}
