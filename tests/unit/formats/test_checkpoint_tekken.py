"""A tekken.json gives the tokens of mistral-common, and each kind of broken one has its message."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from rekindle.core.errors import CheckpointError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = [
    "  ",
    " t",
    "he",
    "in",
    " the",
    "an",
    "er",
    "ing",
    " a",
    "aa",
    "aaa",
    "é",
    "日",
    "日本",
    "ab",
    "abab",
    "Th",
    "xyz",
]
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]"]


def tekken(special: list[str] | None = None, **config: Any) -> dict[str, Any]:
    """Make the content of a file with all bytes and a few longer pieces, two of them beyond its vocabulary."""
    pieces = [bytes([byte]) for byte in range(256)] + [piece.encode() for piece in (*PIECES, "beyond", "it")]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for rank, piece in enumerate(pieces)
    ]
    sizes = {"default_num_special_tokens": 24, "default_vocab_size": 24 + 256 + len(PIECES)}
    content = {"config": {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "version": "v3", **sizes, **config}}
    tokens = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special or ())]
    return {**content, "vocab": vocab, "special_tokens": tokens or None}


def tokenizer_of(directory: Path, content: dict[str, Any]) -> Tokenizer:
    (directory / "tekken.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    return tokenizer


EXPECTED = {
    "": [1],
    "the thing": [1, 140, 282, 281, 128, 287],
    "  The other  one\n": [1, 56, 56, 108, 282, 56, 135, 140, 282, 138, 56, 56, 135, 134, 125, 34],
    "aaaa aaaaa": [1, 289, 289, 288, 289, 289],
    "ababab abab": [1, 295, 294, 288, 122, 294],
    "café 日本語 🙂": [1, 123, 121, 126, 291, 56, 254, 175, 189, 254, 180, 196, 256, 194, 182, 56, 264, 183, 177, 154],
    "x1y22/\r\n": [1, 144, 73, 145, 74, 74, 71, 37, 34],
    "beyond it": [1, 122, 125, 145, 135, 134, 124, 56, 129, 140],
    "HelloWorld xyz": [1, 96, 125, 132, 132, 135, 111, 135, 138, 132, 124, 56, 144, 145, 146],
}
"""Tokens by mistral-common 1.9 (`Tekkenizer.encode` with `bos=True`)."""


@pytest.mark.parametrize("text", EXPECTED)
def test_text_has_the_tokens_of_mistral_common(text: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tekken())
    assert tokenizer.encode(text) == EXPECTED[text]
    assert tokenizer.decode(EXPECTED[text]) == text


@pytest.mark.parametrize("special", [None, SPECIAL])
def test_special_tokens_come_first_and_are_read_in_a_rendered_chat(special: list[str] | None, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tekken(special))
    assert tokenizer.encode_chat("<s>[INST]a[/INST]") == [1, 3, 24 + ord("a"), 4]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.special_ids == frozenset(range(24))
    assert tokenizer.vocab_size == 24 + 256 + len(PIECES)
    assert tokenizer.backend.id_to_token(5) == ("[THINK]" if special else "[AVAILABLE_TOOLS]")
    assert tokenizer.backend.id_to_token(22) == "<SPECIAL_22>"
    assert tokenizer.decode([1, 22, 24 + ord("a"), 2]) == "a"


def test_tokenizer_json_is_preferred(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    byte_tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.vocab_size == byte_tokenizer.vocab_size


@pytest.mark.parametrize(
    "content",
    [
        {},
        {**tekken(), "vocab": None},
        {**tekken(), "vocab": tekken()["vocab"][1:]},
        {**tekken(), "special_tokens": [{"rank": 30, "token_str": "x"}]},
        tekken(SPECIAL, default_num_special_tokens=2),
        tekken(default_vocab_size=9999),
        tekken(default_num_special_tokens=10**6),
        tekken(pattern="("),
    ],
)
def test_a_broken_file_is_named(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tekken\.json: not a readable tekken tokenizer"):
        tokenizer_of(tmp_path, content)


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_template_that_is_no_text_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"\.jinja: not a text in UTF-8 .*Fetch it again"):
        tokenizer_of(tmp_path, tekken())


def test_a_template_without_a_name_is_none(tmp_path: Path) -> None:
    templates = [{"template": "a"}, {"name": [], "template": "b"}, {"name": "default", "template": "c"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert tokenizer_of(tmp_path, tekken()).chat_template == "c"


def test_a_token_around_prompts_is_one_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    with pytest.raises(CheckpointError, match="must add '<bos>' to each prompt, but has no such token"):
        tokenizer_of(tmp_path, tekken())
