"""Tokenizers from SentencePiece models (tokenizer.model), the only tokenizer file of older checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    import tokenizers

SPACE: Final = "\u2581"
"""Character for a space in pieces."""
_UNIGRAM, _BPE = 1, 2  # model types
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # piece types
_NEVER: Final = -1e4
"""Score of pieces excluded from matching, for example byte pieces, because text may contain their names."""


def read_sentencepiece(path: Path, prefix_once: bool) -> tuple[tokenizers.Tokenizer, str | None, str | None]:
    """Build the tokenizer of a SentencePiece model, with its control pieces as special tokens.

    Args:
        path: path of the model file.
        prefix_once: whether the leading space is added only before the first piece of a prompt, not after each special
            token.

    Returns:
        The tokenizer, and the texts of its begin and end pieces or None.

    Raises:
        UnsupportedModel: a library for reading the file is not installed, or the model is neither BPE nor unigram.
        CheckpointError: the file is damaged.
    """
    from tokenizers import Tokenizer as Backend

    model = parse_sentencepiece(path)
    pieces, spec = list(model.pieces), model.trainer_spec
    if spec.model_type not in (_UNIGRAM, _BPE):
        raise UnsupportedModel(f"{path}: only SentencePiece models of type BPE or unigram are supported")
    backend = Backend(_bpe(pieces, spec) if spec.model_type == _BPE else _unigram(pieces, spec))
    _add_spaces(backend, model.normalizer_spec, prefix_once)
    by_score, has_prefix = spec.model_type == _UNIGRAM, model.normalizer_spec.add_dummy_prefix
    _add_tokens(backend, pieces, split_by_score=by_score, has_prefix=has_prefix)
    bos, eos = (pieces[index].piece if 0 <= index < len(pieces) else None for index in (spec.bos_id, spec.eos_id))
    return backend, bos, eos


def parse_sentencepiece(path: Path) -> Any:
    """Parse a SentencePiece model.

    Raises:
        UnsupportedModel: a library for reading the file is not installed.
        CheckpointError: the file is damaged.
    """
    try:
        decode_error: type[Exception] = import_module("google.protobuf.message").DecodeError
        protobuf = import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError as error:
        raise UnsupportedModel(
            f"{path} is a SentencePiece model, and reading it needs two more packages ({error}): "
            "pip install 'rekindle-llm[sentencepiece]', or save the tokenizer as tokenizer.json"
        ) from error
    model: Any = protobuf.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except decode_error as error:
        raise CheckpointError(f"{path}: not a readable SentencePiece model ({error}). Fetch it again") from error
    if not model.pieces:
        raise CheckpointError(f"{path}: a SentencePiece model without pieces. Fetch it again")
    return model


def _bpe(pieces: Sequence[Any], spec: Any) -> Any:
    from tokenizers import models

    vocab = {piece.piece: index for index, piece in enumerate(pieces)}
    return models.BPE(
        vocab=vocab,
        merges=sorted_merges(vocab, pieces),
        unk_token=pieces[spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
    )


def sorted_merges(vocab: Mapping[str, int], pieces: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that merge into a piece, by descending score of the merged piece."""

    def pairs() -> Iterator[tuple[float, int, int, str, str]]:
        for piece in pieces:
            if piece.type == _NORMAL:
                for index in range(1, len(piece.piece)):
                    first, second = piece.piece[:index], piece.piece[index:]
                    if first in vocab and second in vocab:
                        yield -piece.score, vocab[first], vocab[second], first, second

    return [(first, second) for *_, first, second in sorted(pairs())]


def _unigram(pieces: Sequence[Any], spec: Any) -> Any:
    from tokenizers import models

    scored_pieces = [
        (piece.piece, piece.score if piece.type in (_NORMAL, _USER_DEFINED) else _NEVER) for piece in pieces
    ]
    return models.Unigram(scored_pieces, spec.unk_id, spec.byte_fallback)


def _add_spaces(backend: tokenizers.Tokenizer, spec: Any, prefix_once: bool) -> None:
    """Configure text normalization and the conversion of spaces to `SPACE` and back."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix and not prefix_once:
        steps.append(normalizers.Prepend(SPACE))
    if spec.add_dummy_prefix and prefix_once:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    else:
        steps.append(normalizers.Replace(" ", SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    decoding: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(decoding + ([decoders.Strip(" ", 1, 0)] if spec.add_dummy_prefix else []))


def _add_tokens(
    backend: tokenizers.Tokenizer, pieces: Sequence[Any], *, split_by_score: bool, has_prefix: bool
) -> None:
    """Add the pieces to match before a text is split: special pieces and user-defined pieces.

    Text after each of the pieces is treated as a new text, with a leading space if texts have one. SentencePiece
    itself adds no space after user-defined pieces. A unigram model matches user-defined pieces by score instead.
    """
    from tokenizers import AddedToken

    special = [piece.piece for piece in pieces if piece.type in (_UNKNOWN, _CONTROL)]
    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    if split_by_score:
        return
    # Pieces with spaces are matched after normalization, so an added leading space would become part of the match.
    user_defined = [
        piece.piece for piece in pieces if piece.type == _USER_DEFINED and not (has_prefix and SPACE in piece.piece)
    ]
    backend.add_tokens([AddedToken(piece, special=False, normalized=SPACE in piece) for piece in user_defined])
