"""Tokenizers of encoders in GGUF files: WordPiece, Unigram, and the special tokens around texts and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.core.models.config import ModelConfig
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.huggingface.unigram import add_special, unigram_backend, wrap_pairs
from rekindle.formats.checkpoints.huggingface.wordpiece import wordpiece_backend

if TYPE_CHECKING:
    import tokenizers

_SPACE: Final = "\u2581"
"""The mark of a word's first piece; in vocabularies of BERT, the other pieces have a mark instead."""
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_NAMES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "first": (("bos", "cls"), ("[CLS]", "<s>")),
    "last": (("seperator", "eos"), ("[SEP]", "</s>")),  # as the format spells it
    "unknown": (("unknown",), ("[UNK]", "<unk>")),
    "padding": (("padding",), ("[PAD]", "<pad>")),
    "mask": (("mask",), ("[MASK]", "<mask>")),
}
"""The metadata keys of special tokens, and their texts for files without these keys."""


def wordpiece_of(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int] | None, source: str
) -> tokenizers.Tokenizer:
    """Build the WordPiece tokenizer of a file.

    Files do not say whether texts are put in lower case: they are if no piece has a capital letter.

    Raises:
        CheckpointError: the vocabulary lacks a special token.
    """
    special = [_special(metadata, tokens, name, source) for name in _NAMES]
    kinds = [_CONTROL if token in special else _NORMAL for token in tokens] if types is None else types
    texts = [_piece(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    plain = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL and token not in special]
    last = special[1]
    backend: tokenizers.Tokenizer = wordpiece_backend(
        {piece: index for index, piece in enumerate(texts)},
        special,
        f"{last}:0 $B:1 {last}:1",
        lowercase=not any(letter.isupper() for token in plain for letter in token),
    )
    return backend


def unigram_of(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int] | None, source: str
) -> tokenizers.Tokenizer:
    """Build the Unigram tokenizer of a file.

    Raises:
        CheckpointError: tokens and scores do not fit together, or the vocabulary lacks a special token.
    """
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        received = len(scores) if isinstance(scores, list) else "none"
        raise CheckpointError(
            f"{source}: its tokenizer needs {len(tokens)} scores in tokenizer.ggml.scores, got {received}"
        )
    special = [_special(metadata, tokens, name, source) for name in _NAMES]
    charsmap = bytes(code & 0xFF for code in metadata.get("tokenizer.ggml.precompiled_charsmap") or ())
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    unknown = tokens.index(special[2])
    backend = unigram_backend(list(zip(tokens, scores, strict=True)), unknown, charsmap, prefix=prefix)
    control = [token for token, kind in zip(tokens, types or (), strict=False) if kind in (_UNKNOWN, _CONTROL)]
    add_special(backend, [*dict.fromkeys([*control, *(each for each in special if each in tokens)])])
    return backend


def encoder_tokenizer(tokenizer: Tokenizer, metadata: Mapping[str, Any], config: ModelConfig, source: str) -> Tokenizer:
    """Return the tokenizer of an encoder, which puts special tokens around each text and cuts long ones.

    Raises:
        CheckpointError: the vocabulary lacks a special token.
    """
    from tokenizers.models import WordPiece

    is_wordpiece = isinstance(tokenizer.backend.model, WordPiece)
    if not is_wordpiece:
        tokens = metadata["tokenizer.ggml.tokens"]
        first, last = (_special(metadata, tokens, name, source) for name in ("first", "last"))
        wrap_pairs(tokenizer.backend, first, last, doubled=config.family != "modernbert")
    types_pairs = is_wordpiece and config.family == "bert" and config.token_types > 1
    return tokenizer.for_encoder(config.max_context, types_pairs=types_pairs)


def _piece(token: str, kind: int) -> str:
    """Return a piece as BERT's vocabulary has it, from llama.cpp's form with a mark of first pieces."""
    if kind == _CONTROL:
        return token
    return token.removeprefix(_SPACE) if token.startswith(_SPACE) else f"##{token}"


def _special(metadata: Mapping[str, Any], tokens: Sequence[str], name: str, source: str) -> str:
    """Return the text of a special token."""
    keys, texts = _NAMES[name]
    places = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
    named = next((tokens[place] for place in places if isinstance(place, int) and 0 <= place < len(tokens)), None)
    token = named or next((text for text in texts if text in tokens), None)
    if token is None and name in ("padding", "mask"):
        return texts[0]  # a vocabulary may do without it
    if token is None:
        raise CheckpointError(
            f"{source}: its vocabulary has none of {', '.join(texts)}, and no tokenizer.ggml.{keys[0]}_token_id. "
            "Fetch it again"
        )
    return token
