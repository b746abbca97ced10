"""Models with attention in both directions are refused with the reason and a model for embeddings."""

from pathlib import Path
from typing import Any

import pytest

from rekindle.core.errors import UnsupportedModel
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.refusals import architecture_refusal, check_direction, gguf_refusal
from rekindle.formats.families.registry import parse_config
from tests.unit.formats.test_checkpoint_wrapped import flat, nested

EMBEDDING = "The nearest that opens: Qwen3-Embedding (0.6B to 8B), for embeddings"


def assert_is_reason(text: str) -> None:
    assert "both directions" in text
    assert EMBEDDING in text


@pytest.mark.parametrize(
    "name",
    ["bert", "gemma-embedding", "llama-embed", "nomic-bert", "jina-bert-v2", "neo-bert", "modern-bert", "eurobert"],
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
        ("gemma3", {"use_bidirectional_attention": True}),
        ("gemma4-dense", {"use_bidirectional_attention": "all"}),
        ("qwen3", {"is_causal": False}),
        ("llama-tied", {"is_causal": False}),
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


def test_one_direction_is_no_reason(families: Path) -> None:
    config, _ = flat(families)
    one = {"is_causal": True, "use_bidirectional_attention": False}
    assert parse_config({**config, **one}, "config.json") == parse_config(config, "config.json")
    check_direction(Keys({"attention.causal": True, "use_bidirectional_attention": "vision"}, "file"))


def test_a_gguf_file_with_attention_that_is_not_causal_is_refused() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        check_direction(Keys({"attention.causal": False}, "file.gguf: llama"))
    assert_is_reason(str(caught.value))
