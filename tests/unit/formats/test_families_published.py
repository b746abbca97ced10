"""Configs of published models and of newer tools are read in their own forms, and malformed ones are refused."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import Rope
from rekindle.core.models.config.scaling import Llama3Scaling, YarnScaling
from rekindle.core.models.rope import rope_frequencies
from rekindle.formats.families.reading import Family, read_llama
from rekindle.formats.families.registry import parse_config
from tests.unit.formats.test_families_defaults import LLAMA4, SIZES, read

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 5e5}
EXPERTS = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


def test_layers_of_a_gemma4_have_their_own_heads_by_numbers_with_zeros_in_front() -> None:
    sizes = {"num_hidden_layers": 12, "head_dim": 8, "num_key_value_heads": 4, "hidden_size_per_layer_input": 0}
    own = {"05": {"head_dim": 16, "num_key_value_heads": 2}, "11": {"head_dim": 16}}
    heads = [(each.head_dim, each.kv_heads) for each in read("gemma4_text", **sizes, per_layer_config=own).attentions]
    assert heads == [(8, 4)] * 5 + [(16, 2)] + [(8, 4)] * 5 + [(16, 4)]


@pytest.mark.parametrize(
    ("own", "error", "message"),
    [
        ({"3": {"intermediate_size": 32}}, UnsupportedModel, "per_layer_config: 3: intermediate_size 32 is not supp"),
        (
            {"4": {"head_dim": 16}},
            CheckpointError,
            "per_layer_config must be an object of objects by number, from 0 to 3",
        ),
        ({"full_attention": {}}, CheckpointError, "per_layer_config must be an object of objects by number"),
        ([1], CheckpointError, "per_layer_config must be an object of objects by number"),
    ],
)
def test_other_differences_of_layers_are_refused(own: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read("gemma4_text", per_layer_config=own)


def test_a_family_without_sizes_by_layer_refuses_them() -> None:
    assert read("llama", per_layer_config={}) == read("llama")
    with pytest.raises(UnsupportedModel, match=r"per_layer_config .* is not supported in this family"):
        read("llama", per_layer_config={"3": {"num_key_value_heads": 2}})


def test_an_olmo3_has_one_rope_or_a_rope_for_each_kind_of_layer() -> None:
    plain = {"rope_type": "default", "rope_theta": 5e5}
    by_kind = {"full_attention": YARN, "sliding_attention": plain}
    model = read("olmo3", rope_parameters=by_kind, sliding_window=8)
    assert model == read("olmo3", rope_parameters=YARN, sliding_window=8)
    assert [type(each.rope.scaling) for each in model.attentions if each.rope] == [type(None)] * 3 + [YarnScaling]


def test_the_router_of_a_dots1_is_named_by_its_method_in_published_files() -> None:
    assert read("dots1", **EXPERTS, scoring_func="noaux_tc") == read("dots1", **EXPERTS)


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("apertus", {"post_norm": False, "qk_norm": True}),
        ("exaone4", {"layer_norm_epsilon": 1e-5}),
        ("gpt2", {"_num_labels": 1, "n_ctx": 1024}),
        ("gpt_neox", {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0}),
        ("gptj", {"rotary": True}),
        ("llama", {"unsloth_fixed": True, "unsloth_version": "2026.11"}),
        ("llama4_text", {**LLAMA4, "for_llm_compressor": False}),
        ("minimax_m2", {"mlp_intermediate_size": 8192, "shared_moe_mode": "sigmoid"}),
        ("opt", {"ffn_dim": 96, "intermediate_size": None, "activation_dropout": 0.0}),
        ("solar_open", {**EXPERTS, "first_k_dense_replace": 0}),
    ],
)
def test_keys_of_published_files_without_an_effect_cause_no_warning(model_type: str, keys: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(model_type, **keys)


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("apertus", {"post_norm": True}),
        ("apertus", {"qk_norm": False}),
        ("gptj", {"rotary": False}),
        ("solar_open", {**EXPERTS, "first_k_dense_replace": 1}),
    ],
)
def test_these_keys_are_refused_with_another_effect(model_type: str, keys: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=f"{list(keys)[-1]} (True|False|1) is not supported"):
        read(model_type, **keys)


@pytest.mark.parametrize(
    ("kind", "layers", "hidden", "heads", "kv_heads", "head_dim", "experts"),
    [
        ("gpt_oss", 36, 2880, 64, 8, 64, 128),
        ("llama4_text", 48, 5120, 40, 8, 128, 16),
        ("qwen3_moe", 24, 2048, 32, 4, 64, 128),
    ],
)
def test_a_nested_config_is_saved_without_the_sizes_of_its_class(
    kind: str, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, experts: int
) -> None:
    model = parse_config({"architectures": ["Wrapped"], "text_config": {"model_type": kind}}, "config.json")
    attention = model.attentions[0]
    assert (model.num_layers, model.hidden_size) == (layers, hidden)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (heads, kv_heads, head_dim)
    assert model.layers[-1].feed_forward.count == experts  # type: ignore[union-attr]


def test_a_gpt_oss_without_a_rope_has_the_one_of_its_class() -> None:
    rope = read("gpt_oss").attentions[0].rope
    settings = {"factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False}
    assert rope == read("gpt_oss", rope_scaling=settings).attentions[0].rope
    assert rope is not None
    assert isinstance(rope.scaling, YarnScaling)


def test_a_rope_of_llama_3_may_leave_no_frequencies_between_low_and_high() -> None:
    rope = Rope(1e4, Llama3Scaling(8.0, 1.0, 1.0, 64))
    plain = rope_frequencies(replace(rope, scaling=None), 32)
    with np.errstate(all="raise"):
        scaled = rope_frequencies(rope, 32)
    rotations = 64 * plain / (2 * np.pi)
    np.testing.assert_array_equal(scaled, np.where(rotations > 1, plain, plain / 8))


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"architectures": 7}),
        ("llama", {"hidden_act": []}),
        ("llama", {"layer_types": 7}),
        ("llama", {"model_type": []}),
        ("deepseek_v3", {**EXPERTS, **LATENT, "first_k_dense_replace": "x"}),
        ("gemma3_text", {"query_pre_attn_scalar": 0}),
        ("ministral3", {"rope_parameters": [1]}),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": "x"}),
        ("smollm3", {"no_rope_layers": [1]}),
    ],
)
def test_a_value_of_another_kind_is_refused_as_a_fault_of_the_file(model_type: str, changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: a value is of a wrong type, size or length"):
        parse_config(SIZES | {"model_type": model_type} | changes, "config.json")


def test_an_error_of_a_users_own_reader_stays_as_it_is() -> None:
    family = Family("Own", lambda keys: [read_llama(keys)][1], "own")
    with pytest.raises(IndexError):
        parse_config(SIZES | {"architectures": ["Own"]}, "config.json", family)
