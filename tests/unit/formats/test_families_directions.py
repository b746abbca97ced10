"""Models with attention in both directions are refused with the reason and a model for embeddings."""

from pathlib import Path
from typing import Any

import pytest

from rekindle.core.errors import UnsupportedModel
from rekindle.formats.families.refusals import architecture_refusal, gguf_refusal
from rekindle.formats.families.registry import parse_config
from tests.unit.formats.test_checkpoint_wrapped import flat, nested

EMBEDDING = "The nearest that opens: Qwen3-Embedding (0.6B to 8B), for embeddings"


def assert_is_reason(text: str) -> None:
    assert "both directions" in text
    assert EMBEDDING in text


@pytest.mark.parametrize(
    "name",
    ["bert", "llama-embed", "nomic-bert", "jina-bert-v2", "neo-bert", "modern-bert", "eurobert"],
)
def test_a_gguf_file_of_an_embedding_model_names_another_one(name: str) -> None:
    assert_is_reason(gguf_refusal("file.gguf", name))


@pytest.mark.parametrize(
    "name",
    ["LlamaBidirectionalModel", "NVEmbedModel", "XLMRobertaModel", "GteModel", "NewModel", "MPNetModel", "BertModel"],
)
def test_an_architecture_for_embeddings_names_another_one(name: str) -> None:
    assert_is_reason(architecture_refusal("config.json", [name], [{}]))


def test_a_chat_model_with_a_similar_name_is_none_of_them() -> None:
    assert "embeddings" not in gguf_refusal("file.gguf", "pangu-embedded")


@pytest.mark.parametrize(
    ("family", "entry"),
    [
        ("gemma4-dense", {"use_bidirectional_attention": "all"}),
        ("lfm2", {"is_causal": False}),
        ("llama4", {"is_causal": False}),
        ("qwen3", {"use_bidirectional_attention": True}),
        ("qwen3", {"bidirectional": True}),
    ],
    ids=str,
)
def test_a_key_for_both_directions_is_the_reason(families: Path, family: str, entry: dict[str, Any]) -> None:
    config, _ = flat(families, family)
    for config_ in ({**config, **entry}, nested({**config, **entry})):
        with pytest.raises(UnsupportedModel) as caught:
            parse_config(config_, "config.json")
        assert_is_reason(str(caught.value))


@pytest.mark.parametrize(
    ("family", "entry", "windows"),
    [
        ("llama-tied", {"is_causal": False}, {(None, None)}),
        ("qwen3", {"is_causal": False}, {(None, None)}),
        ("mistral", {"is_causal": False, "sliding_window": 12}, {(13, 12)}),
        ("gemma3", {"use_bidirectional_attention": True, "sliding_window": 12}, {(7, 6), (None, None)}),
    ],
    ids=("llama-tied", "qwen3", "mistral", "gemma3"),
)
def test_attention_in_both_directions_reaches_as_far_in_each(
    families: Path, family: str, entry: dict[str, Any], windows: set[tuple[int | None, int | None]]
) -> None:
    config, _ = flat(families, family)
    model = parse_config({**config, **entry}, "config.json")
    assert model.both_ways
    assert {(attention.window, attention.ahead) for attention in model.attentions} == windows


def test_one_direction_is_no_reason(families: Path) -> None:
    config, _ = flat(families)
    one = {"is_causal": True, "use_bidirectional_attention": False}
    assert parse_config({**config, **one}, "config.json") == parse_config(config, "config.json")
    assert not parse_config({**config, "use_bidirectional_attention": "vision"}, "config.json").both_ways
