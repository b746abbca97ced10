"""A tokenizer of SentencePiece in a GGUF file gives the ids and texts of the sentencepiece library."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from rekindle.core.errors import CheckpointError
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.gguf.tokenizer import eos_ids, gguf_tokenizer

ROOT = Path(__file__).parents[3]
TEXTS = [
    "Hello world",
    "  two  spaces   and more    ",
    " ",
    "line\nbreak\r\n\ttab",
    "naïve — 東京 🚀",
    "session.generate(prompt, max_tokens=64)",
    "aaaaaaaaaaaaa",
    "12345 3.14",
    "<0x41> is no byte",
    "a ▁ b",
]


def trained(prefix: bool) -> SentencePieceProcessor:
    """Train a small model of the kind of Llama's and Gemma's, without the network.

    Args:
        prefix: whether a text gets a space before it.
    """
    content = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter((ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()),
        model_writer=content,
        model_type="bpe",
        vocab_size=800,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        split_digits=True,
        minloglevel=2,
    )
    return SentencePieceProcessor(model_proto=content.getvalue())


def metadata_of(model: SentencePieceProcessor, prefix: bool) -> dict[str, Any]:
    """Return the metadata of a model by llama.cpp's converter."""
    ids = range(model.vocab_size())
    kinds = {2: model.IsUnknown, 3: model.IsControl, 5: model.IsUnused, 6: model.IsByte}
    types = [next((kind for kind, holds in kinds.items() if holds(token)), 1) for token in ids]
    metadata = {
        "model": "llama",
        "pre": "default",
        "tokens": [model.IdToPiece(token) for token in ids],
        "scores": [model.GetScore(token) for token in ids],
        "token_type": types,
        "unknown_token_id": model.unk_id(),
    }
    if not prefix:
        metadata["add_space_prefix"] = False
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def rebuilt(metadata: dict[str, Any], **changes: Any) -> Tokenizer:
    tokenizer = gguf_tokenizer(metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}, "here")
    assert tokenizer is not None
    return tokenizer


def with_merges(model: SentencePieceProcessor) -> dict[str, Any]:
    """Return the metadata of a Gemma 4 by llama.cpp's converter: merges in place of scores, best pieces first."""
    metadata = metadata_of(model, prefix=False) | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.bos_token_id": 1}
    ids = [token for token in range(model.vocab_size()) if not (model.IsControl(token) or model.IsByte(token))]
    pieces = {model.IdToPiece(token): token for token in ids}
    merges = [
        (-model.GetScore(token), f"{piece[:cut]} {piece[cut:]}")
        for piece, token in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    scores = metadata.pop("tokenizer.ggml.scores")
    assert len(scores) == model.vocab_size()
    return metadata | {"tokenizer.ggml.merges": [merge for _, merge in sorted(merges, key=lambda pair: pair[0])]}


MODELS = {prefix: trained(prefix) for prefix in (True, False)}
REBUILT = {prefix: rebuilt(metadata_of(model, prefix)) for prefix, model in MODELS.items()}
MERGING = rebuilt(with_merges(MODELS[False]))


def check(text: str, prefix: bool, merging: bool = False) -> None:
    model, tokenizer = MODELS[prefix], MERGING if merging else REBUILT[prefix]
    expected = model.Encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    assert tokenizer.encode(text) == [model.bos_id(), *expected]
    assert tokenizer.decode(expected) == text.replace("▁", " ")
    assert model.Decode(expected) == text.replace("▁", " ")


@pytest.mark.parametrize(("prefix", "merging"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_gives_the_librarys_ids(text: str, prefix: bool, merging: bool) -> None:
    check(text, prefix, merging)


# Of a text that holds nothing, or a special token, the two make something else.
ANY = st.text(st.characters(exclude_characters="\0<", exclude_categories=["Cs"]), min_size=1)


@given(st.one_of(ANY, st.text("abcdefgh rtseo.\n", min_size=1)), st.booleans())
def test_any_text_gives_the_librarys_ids(text: str, prefix: bool) -> None:
    check(text, prefix, merging=not prefix)


def test_runs_of_newlines_merge_and_a_prompt_of_a_gemma4_begins_with_bos_whatever_its_file_asks() -> None:
    metadata = with_merges(MODELS[False])
    size = len(metadata["tokenizer.ggml.tokens"])
    tokenizer = rebuilt(
        metadata,
        tokens=[*metadata["tokenizer.ggml.tokens"], "\n", "\n\n", "\n\n\n", "<|turn>", "<|tool_call>"],
        token_type=[*metadata["tokenizer.ggml.token_type"], 1, 1, 1, 3, 4],
        merges=["\n \n", "\n\n \n", "\n \n\n", *metadata["tokenizer.ggml.merges"]],
        add_bos_token=False,
    )
    text = "<|turn>Hello\n\n\n<|tool_call> \n"
    space = tokenizer.backend.token_to_id("\u2581")
    ids = [1, size + 3, *MODELS[False].Encode("Hello"), size + 2, size + 4, space, size]
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text.removeprefix("<|turn>")
    assert tokenizer.decode(ids[1:], skip_special_tokens=False) == text


def test_a_gemma4_without_merges_or_with_those_of_others_is_told() -> None:
    metadata = with_merges(MODELS[False])
    with pytest.raises(CheckpointError, match=r"missing tokenizer\.ggml\.merges"):
        rebuilt(metadata, merges=None)
    with pytest.raises(CheckpointError, match="do not fit together"):
        rebuilt(metadata, merges=["no token"])


@pytest.mark.parametrize("prefix", [True, False])
def test_every_token_has_the_librarys_bytes(prefix: bool) -> None:
    model, tokenizer = MODELS[prefix], REBUILT[prefix]
    for token in range(3, model.vocab_size()):
        expected = bytes([token - 3]) if model.IsByte(token) else model.IdToPiece(token).replace("▁", " ").encode()
        assert token_bytes(tokenizer, token) == expected
        assert prefix or token_bytes(MERGING, token) == expected


def test_ends_that_a_file_does_not_name_are_sentencepieces() -> None:
    tokenizer = REBUILT[True]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert eos_ids(metadata_of(MODELS[True], prefix=True)) == {2}
    both = rebuilt(metadata_of(MODELS[True], prefix=True), add_eos_token=True)
    assert both.encode("Hello")[0] == 1
    assert both.encode("Hello")[-1] == 2
    neither = rebuilt(metadata_of(MODELS[True], prefix=True), add_bos_token=False)
    assert neither.encode("Hello") == MODELS[True].Encode("Hello")


@pytest.mark.parametrize(
    ("texts", "ids", "expected"),
    [
        (["<pad>", "<eos>", "<bos>", "<end_of_turn>"], {"eos_token_id": 1}, {1, 3}),
        (["<unk>", "<s>", "</s>", "<|im_end|>"], {"eos_token_id": 2}, {2, 3}),
        (["<unk>", "<s>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {}, {2, 3, 4}),
        (["<unk>", "<s>", "x", "<|return|>", "<|call|>", "<|end|>"], {"eos_token_id": 3}, {3, 4}),
        (["<unk>", "<s>", "x", "<|end|>"], {"eos_token_id": 2}, {2, 3}),
        (["<unk>", "<s>", "a", "b", "c"], {"eos_token_id": 2, "eos_token_ids": [2, 4]}, {2, 4}),
    ],
)
def test_ends_of_turns_are_known_by_their_texts_where_a_file_names_one_alone(
    texts: list[str], ids: dict[str, Any], expected: set[int]
) -> None:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in ids.items()}
    assert eos_ids({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": texts, **metadata}) == expected


@pytest.mark.parametrize(
    ("texts", "types", "declared", "expected"),
    [
        (["<pad>", "<eos>", "<bos>", "<s>", "</s>", "<end_of_turn>"], [3, 3, 3, 4, 4, 3], {"eos_token_id": 1}, {1, 5}),
        (["a", "</s>", "<|endoftext|>", "<|im_end|>"], [1, 1, 3, 3], {"eos_token_id": 3}, {2, 3}),
        (["a", "[EOS]", "<EOT>", "<eos>", "<|end|>", "</s>"], [1, 1, 4, 6, 5, 3], {}, {5}),
        (["a", "<|return|>", "<|call|>", "<|end|>"], [1, 3, 4, 3], {"eos_token_id": 1}, {1, 3}),
        (["a", "</s>", "<|im_end|>"], [1, 1, 4], {"eos_token_id": 1, "eot_token_id": 2}, {1, 2}),
    ],
)
def test_tokens_of_other_types_with_the_text_of_an_end_are_text_unless_declared(
    texts: list[str], types: list[int], declared: dict[str, Any], expected: set[int]
) -> None:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in declared.items()}
    metadata |= {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types}
    assert eos_ids({"tokenizer.ggml.model": "gpt2", **metadata}) == expected


def test_special_tokens_and_those_of_the_authors_are_found_in_text() -> None:
    metadata = metadata_of(MODELS[False], prefix=False)
    size = len(metadata["tokenizer.ggml.tokens"])
    added = rebuilt(
        metadata,
        tokens=[*metadata["tokenizer.ggml.tokens"], "<|user|>", "  \n"],
        scores=[*metadata["tokenizer.ggml.scores"], -1000.0, -1000.0],
        token_type=[*metadata["tokenizer.ggml.token_type"], 3, 4],
    )
    ids = added.encode("<|user|>Hello  \n", add_special_tokens=False)
    assert ids == [size, *MODELS[False].Encode("Hello"), size + 1]
    assert added.decode(ids) == "Hello  \n"
    assert size in added.special_ids
    assert size + 1 not in added.special_ids


@pytest.mark.parametrize("scores", [None, [0.0]])
def test_scores_that_are_missing_are_told(scores: list[float] | None) -> None:
    with pytest.raises(CheckpointError, match=r"needs 800 scores in tokenizer\.ggml\.scores, got (none|1)"):
        rebuilt(metadata_of(MODELS[True], prefix=True), scores=scores)
