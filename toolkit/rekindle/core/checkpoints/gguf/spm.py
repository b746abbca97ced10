"""SentencePiece's BPE in a GGUF file, which has a score for each token in place of merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

_SPACE: Final = "\u2581"  # stands for a space in tokens
_NORMAL: Final = 1  # the type of tokens that are made by merging; there is a token for each byte of other characters


def sentencepiece_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int] | None, source: str
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a file, without special tokens.

    Args:
        types: of the tokens; None if all are normal.

    Raises:
        CheckpointError: tokens and scores do not fit together.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        came = len(scores) if isinstance(scores, list) else "none"
        raise CheckpointError(
            f"{source}: its tokenizer needs {len(tokens)} scores in tokenizer.ggml.scores, got {came}"
        )
    vocab = {token: place for place, token in enumerate(tokens)}
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
    """Return all pairs of tokens that together are a token, the one of the highest score first.

    SentencePiece merges the neighbours that give the token of the highest score, again and again.
    """
    made = [
        (-scores[whole], vocab[left], vocab[right], left, right)
        for token, whole in vocab.items()
        if types is None or types[whole] == _NORMAL
        for cut in range(1, len(token))
        if (left := token[:cut]) in vocab and (right := token[cut:]) in vocab
    ]
    return [(left, right) for *_, left, right in sorted(made)]
