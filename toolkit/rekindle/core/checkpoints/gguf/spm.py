"""SentencePiece BPE of GGUF files, with a score for each token instead of merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

_SPACE: Final = "\u2581"  # character for a space in tokens
_NORMAL: Final = 1  # type of tokens produced by merging; byte tokens cover all other characters


def sentencepiece_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int] | None, source: str
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a file, without special tokens.

    Args:
        metadata: the file's metadata.
        tokens: the vocabulary.
        types: types of the tokens, or None if all are normal.
        source: path of the file, for error messages.

    Raises:
        CheckpointError: tokens and scores do not fit together.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        received = len(scores) if isinstance(scores, list) else "none"
        raise CheckpointError(
            f"{source}: its tokenizer needs {len(tokens)} scores in tokenizer.ggml.scores, got {received}"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = models.BPE(
        vocab=vocab,
        merges=_merges(vocab, scores, types),
        unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    spaces, decoding = normalizers.Replace(" ", _SPACE), [decoders.Replace(_SPACE, " "), decoders.ByteFallback()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        backend.decoder = decoders.Sequence([*decoding, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = spaces
        backend.decoder = decoders.Sequence([*decoding, decoders.Fuse()])
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
