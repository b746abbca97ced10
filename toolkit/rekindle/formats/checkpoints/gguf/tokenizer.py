"""Reconstruction of a tokenizer from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.text.tokenizer import Tokenizer, wrap
from rekindle.formats.checkpoints.gguf.bpe import byte_level_backend
from rekindle.formats.end_tokens import end_ids

if TYPE_CHECKING:
    import tokenizers

BYTE_LEVEL: Final = "gpt2"
SENTENCEPIECE: Final = "llama"
GEMMA4: Final = "gemma4"
WORDPIECE: Final = "bert"
UNIGRAM: Final = "t5"
_OTHERS: Final = {"rwkv": "RWKV's", "plamo2": "PLaMo 2's"}
_KINDS: Final = (BYTE_LEVEL, SENTENCEPIECE, GEMMA4, WORDPIECE, UNIGRAM)
_ENDS: Final = {"bos": 1, "eos": 2}
"""Default token ids for SentencePiece, for files without them."""
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # types of tokens other than plain text


def gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> Tokenizer | None:
    """Rebuild the tokenizer from a file's metadata. None means a model served by token ids alone.

    Raises:
        UnsupportedModel: the tokenizer is of another kind, or its pre-tokenizer is unknown.
        CheckpointError: tokens, types, merges and scores do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    if kind not in _KINDS:
        description = f" ({_OTHERS[kind]})" if kind in _OTHERS else ""
        raise UnsupportedModel(
            f"{source}: its tokenizer is of the kind {kind!r}{description}, but only {BYTE_LEVEL!r} (byte-level BPE), "
            f"{SENTENCEPIECE!r} (SentencePiece's BPE), {GEMMA4!r} (the same with merges), {WORDPIECE!r} (WordPiece) "
            f"and {UNIGRAM!r} (Unigram) are supported. Open the model's Hugging Face directory instead"
        )
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        raise CheckpointError(f"{source}: missing tokenizer.ggml.tokens, which its tokenizer needs. Fetch it again")
    if types is not None and len(types) != len(tokens):
        raise CheckpointError(f"{source}: {len(tokens)} tokens, but {len(types)} token types")
    if kind in (WORDPIECE, UNIGRAM):
        from rekindle.formats.checkpoints.gguf.encoder_tokenizers import unigram_of, wordpiece_of

        return Tokenizer((wordpiece_of if kind == WORDPIECE else unigram_of)(metadata, tokens, types, source))
    if kind == BYTE_LEVEL:
        backend, adds_bos = byte_level_backend(metadata, tokens, source)
    elif kind == GEMMA4:
        from rekindle.formats.checkpoints.gguf.spm import merging_backend

        backend, adds_bos = merging_backend(metadata, tokens, source), True
    else:
        from rekindle.formats.checkpoints.gguf.spm import sentencepiece_backend

        backend, adds_bos = sentencepiece_backend(metadata, tokens, types, source), True
    if types is not None:
        _add_special(backend, tokens, types)
    bos, eos = (_token(metadata, end, tokens, _ENDS if kind == SENTENCEPIECE else {}, source) for end in ("bos", "eos"))
    # llama.cpp begins all prompts of this kind with bos, because some files wrongly ask for none (its PR 21500).
    prefix = bos if kind == GEMMA4 or metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    wrap(backend, prefix, eos if metadata.get("tokenizer.ggml.add_eos_token") else None)
    names = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
    template, for_tools = (text if isinstance(text := metadata.get(name), str) else None for name in names)
    return Tokenizer(backend, template, bos, eos, tool_template=for_tools)


def eos_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Return the end tokens of an answer: the tokens declared by the file, and control tokens with known texts.

    Tokens of other types are text, for example the HTML tag "</s>" in the vocabularies of Gemma and Qwen.
    """
    ids = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    if ids[0] is None and metadata.get("tokenizer.ggml.model") == SENTENCEPIECE:
        ids.append(_ENDS["eos"])
    ids += metadata.get("tokenizer.ggml.eos_token_ids", ())
    tokens, types = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type")
    control = {token: i for i, token in enumerate(tokens) if types is None or types[i] == _CONTROL}
    ids_by_text = end_ids(control)
    return ids_by_text | {token for token in ids if token is not None}


def _add_special(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Add the tokens to match before text is split: special tokens and user-defined tokens."""
    from tokenizers import AddedToken

    for is_special, kinds in ((True, (_CONTROL, _UNKNOWN)), (False, (_USER_DEFINED,))):
        added_tokens = [
            AddedToken(token, special=is_special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if token and kind in kinds
        ]
        (backend.add_special_tokens if is_special else backend.add_tokens)(added_tokens)


def _token(
    metadata: Mapping[str, Any], end: str, tokens: Sequence[str], default: Mapping[str, int], source: str
) -> str | None:
    key = f"tokenizer.ggml.{end}_token_id"
    token_id = metadata.get(key, default.get(end))
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise CheckpointError(f"{source}: {key} must be one of {len(tokens)} tokens, got {token_id}")
    return tokens[token_id]
