"""Absent keys have the defaults of transformers' classes, and values without support are refused by name."""

from typing import Any

import pytest

from rekindle.assembly.limits.resolution import resolve_limits
from rekindle.core.errors import ConfigError, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.formats.families.registry import parse_config
from rekindle.settings.engine import Settings

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
}
LLAMA4: dict[str, Any] = {"intermediate_size_mlp": 96, "num_key_value_heads": 8, "head_dim": 8}


def read(model_type: str, **changes: Any) -> ModelConfig:
    return parse_config(SIZES | {"model_type": model_type} | changes, "config.json")


def test_an_apertus_has_the_rope_of_llama_3_unless_it_names_another() -> None:
    rope = read("apertus").attentions[0].rope
    assert rope is not None
    assert (rope.theta, rope.scaling) == (12_000_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    other = read("apertus", rope_parameters={"rope_type": "default", "rope_theta": 5e5}).attentions[0].rope
    assert other is not None
    assert (other.theta, other.scaling) == (5e5, None)


@pytest.mark.parametrize(
    ("model_type", "theta", "eps", "head_dim", "kv_heads"),
    [
        ("helium", 1e5, 1e-8, 128, 8),
        ("glm", 1e4, 1.5625e-7, 128, 2),
        ("arcee", 1e4, 1e-5, 8, 8),
        ("minimax_m2", 5e6, 1e-6, 128, 8),
        ("olmoe", 1e4, 1e-5, 8, 8),
        ("afmoe", 1e4, 1e-5, 128, 8),
    ],
)
def test_absent_keys_have_the_defaults_of_their_class(
    model_type: str, theta: float, eps: float, head_dim: int, kv_heads: int
) -> None:
    model = read(model_type)
    attention = model.attentions[0]
    assert attention.rope is not None
    assert (attention.rope.theta, model.norm.eps) == (theta, eps)
    assert (attention.head_dim, attention.kv_heads) == (head_dim, kv_heads)


@pytest.mark.parametrize(
    ("architecture", "family"), [("PhiMoEForCausalLM", "phimoe"), ("ExaoneMoEForCausalLM", "exaone_moe")]
)
def test_an_architecture_is_known_in_its_published_spelling(architecture: str, family: str) -> None:
    sizes = {"num_experts_per_tok": 2, "num_local_experts": 4}
    assert read(family, **sizes, architectures=[architecture]).family == family


def test_scores_of_a_gpt2_may_be_divided_by_the_number_of_the_layer() -> None:
    plain, divided = (read("gpt2", scale_attn_by_inverse_layer_idx=flag).attentions for flag in (False, True))
    assert [each.scale for each in divided] == [each.scale / n for n, each in enumerate(plain, 1)]


def test_windows_of_a_cohere_2_are_4096_tokens_unless_its_config_says_otherwise() -> None:
    assert [each.window for each in read("cohere2").attentions] == [4096, 4096, 4096, None]
    assert [each.window for each in read("cohere2", sliding_window=None).attentions] == [None] * 4


@pytest.mark.parametrize(("pattern", "windows"), [("LG", [7, None, 7, None]), (3, [7, 7, None, 7])])
def test_windows_of_an_exaone_follow_a_pattern_and_the_other_layers_have_no_positions(
    pattern: Any, windows: list[int | None]
) -> None:
    attentions = read("exaone4", sliding_window=7, sliding_window_pattern=pattern).attentions
    assert [each.window for each in attentions] == windows
    assert [each.rope is None for each in attentions] == [window is None for window in windows]


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        (
            "llama4_text",
            {**LLAMA4, "attention_chunk_size": 24},
            "attention_chunk_size must be a multiple of 16, got 24",
        ),
        ("minimax_m2", {"attn_type_list": [1, 0, 1, 0]}, "attn_type_list"),
        ("afmoe", {"route_norm": False}, "route_norm False"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok 3"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias True"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm True"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": [96, 48, 96, 96]}, "moe_intermediate_size"),
    ],
)
def test_what_a_family_lacks_is_refused_by_name(model_type: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(model_type, **changes)


def test_pages_do_not_lie_across_chunks_unless_no_request_is_longer_than_one() -> None:
    model = read("llama4_text", **LLAMA4, attention_chunk_size=96)
    with pytest.raises(ConfigError, match=r"page_size must divide 96, .* got 64; or pass a max_context of at most 96"):
        resolve_limits(Settings(page_size=64), model, 4)
    resolve_limits(Settings(page_size=32), model, 4)
    resolve_limits(Settings(page_size=64, max_context=96), model, 4)
