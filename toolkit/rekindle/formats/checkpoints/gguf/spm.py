"""SentencePiece BPE of GGUF files, with a score for each token, or with merges as in Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.gguf.bpe import backend_of, stored_merges

if TYPE_CHECKING:
    import tokenizers

_SPACE: Final = "\u2581"  # character for a space in tokens
_NORMAL: Final = 1  # type of tokens produced by merging; byte tokens cover all other characters


def sentencepiece_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int] | None, source: str
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a file with scores, without special tokens.

    Args:
        metadata: the file's metadata.
        tokens: the vocabulary.
        types: types of the tokens, or None if all are normal.
        source: path of the file, for error messages.

    Raises:
        CheckpointError: tokens and scores do not fit together.
    """
    from tokenizers import decoders, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        received = len(scores) if isinstance(scores, list) else "none"
        raise CheckpointError(
            f"{source}: its tokenizer needs {len(tokens)} scores in tokenizer.ggml.scores, got {received}"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = _backend(tokens, _merges(vocab, scores, types), unknown, source)
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), backend.normalizer])
        backend.decoder = decoders.Sequence([backend.decoder, decoders.Strip(" ", 1, 0)])
    return backend


def merging_backend(metadata: Mapping[str, Any], tokens: Sequence[str], source: str) -> tokenizers.Tokenizer:
    """Build the tokenizer of a file with merges, without special tokens, and without a space before a text.

    Args:
        metadata: the file's metadata.
        tokens: the vocabulary.
        source: path of the file, for error messages.

    Raises:
        CheckpointError: tokens and merges do not fit together.
    """
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", -1)
    return _backend(tokens, stored_merges(metadata, source), unknown, source)


def _backend(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], unknown: int, source: str
) -> tokenizers.Tokenizer:
    """Return a tokenizer with "\u2581" for spaces, and byte tokens for characters outside the vocabulary."""
    from tokenizers import decoders, models, normalizers

    model = partial(
        models.BPE,
        vocab={token: index for index, token in enumerate(tokens)},
        merges=list(merges),
        unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = backend_of(model, source)
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _merges(vocab: Mapping[str, int], scores: Sequence[float], types: Sequence[int] | None) -> list[tuple[str, str]]:
    """Return the pairs of tokens that merge into a token, by descending score of the merged token.

    SentencePiece repeatedly merges the neighbours with the highest-scoring result.
    """
    merges = [
        (-scores[merged_id], vocab[first], vocab[second], first, second)
        for token, merged_id in vocab.items()
        if types is None or types[merged_id] == _NORMAL
        for index in range(1, len(token))
        if (first := token[:index]) in vocab and (second := token[index:]) in vocab
    ]
    return [(first, second) for *_, first, second in sorted(merges)]
