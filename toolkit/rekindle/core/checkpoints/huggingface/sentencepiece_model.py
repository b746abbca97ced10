"""A tokenizer made from a SentencePiece model, the file tokenizer.model that older checkpoints have alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    import tokenizers

SPACE: Final = "\u2581"
"""The sign that stands for a space in pieces."""
_UNIGRAM, _BPE = 1, 2  # types of models
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # types of pieces
_NEVER: Final = -1e4
"""The score of pieces that texts are not cut into, such as bytes, whose names may stand in them."""


def read_sentencepiece(path: Path, prefix_once: bool) -> tuple[tokenizers.Tokenizer, str | None, str | None]:
    """Make the tokenizer of a SentencePiece model, with its control pieces as special tokens.

    Args:
        prefix_once: whether the space that a text begins with is put before the first piece of a prompt only, and not
            after each special token.

    Returns:
        The tokenizer, and the texts of the pieces that begin and end a text.

    Raises:
        UnsupportedModel: the library that reads such files is not installed, or the model is neither BPE nor unigram.
        CheckpointError: the file is damaged.
    """
    from tokenizers import Tokenizer as Backend

    model = _parsed(path)
    pieces, trained = list(model.pieces), model.trainer_spec
    if trained.model_type not in (_UNIGRAM, _BPE):
        raise UnsupportedModel(f"{path}: only SentencePiece models of the types BPE and unigram are supported")
    backend = Backend(_bpe(pieces, trained) if trained.model_type == _BPE else _unigram(pieces, trained))
    _add_spaces(backend, model.normalizer_spec, prefix_once)
    by_score, prefixed = trained.model_type == _UNIGRAM, model.normalizer_spec.add_dummy_prefix
    _add_tokens(backend, pieces, cut_by_score=by_score, prefixed=prefixed)
    bos, eos = (pieces[place].piece if 0 <= place < len(pieces) else None for place in (trained.bos_id, trained.eos_id))
    return backend, bos, eos


def _parsed(path: Path) -> Any:
    try:
        damaged: type[Exception] = import_module("google.protobuf.message").DecodeError
        forms = import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError as error:
        raise UnsupportedModel(
            f"{path} is a SentencePiece model, which takes two more packages to read ({error}): "
            "pip install 'rekindle[sentencepiece]', or save the tokenizer as tokenizer.json"
        ) from error
    model: Any = forms.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except damaged as error:
        raise CheckpointError(f"{path}: not a readable SentencePiece model ({error}). Fetch it again") from error
    if not model.pieces:
        raise CheckpointError(f"{path}: a SentencePiece model without pieces. Fetch it again")
    return model


def _bpe(pieces: Sequence[Any], trained: Any) -> Any:
    from tokenizers import models

    vocab = {piece.piece: place for place, piece in enumerate(pieces)}
    return models.BPE(
        vocab=vocab,
        merges=sorted_merges(vocab, pieces),
        unk_token=pieces[trained.unk_id].piece,
        fuse_unk=True,
        byte_fallback=trained.byte_fallback,
    )


def sorted_merges(vocab: Mapping[str, int], pieces: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that together are a piece, those that make the one of the highest score first."""

    def pairs() -> Iterator[tuple[float, int, int, str, str]]:
        for piece in pieces:
            if piece.type == _NORMAL:
                for cut in range(1, len(piece.piece)):
                    left, right = piece.piece[:cut], piece.piece[cut:]
                    if left in vocab and right in vocab:
                        yield -piece.score, vocab[left], vocab[right], left, right

    return [(left, right) for *_, left, right in sorted(pairs())]


def _unigram(pieces: Sequence[Any], trained: Any) -> Any:
    from tokenizers import models

    scored = [(piece.piece, piece.score if piece.type in (_NORMAL, _USER_DEFINED) else _NEVER) for piece in pieces]
    return models.Unigram(scored, trained.unk_id, trained.byte_fallback)


def _add_spaces(backend: tokenizers.Tokenizer, spec: Any, prefix_once: bool) -> None:
    """Have texts normalised, and their spaces written as the pieces have them, and read back."""
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


def _add_tokens(backend: tokenizers.Tokenizer, pieces: Sequence[Any], *, cut_by_score: bool, prefixed: bool) -> None:
    """Add the pieces that are found in a text before it is cut: special ones, and those of the model's authors.

    After each of them a text begins anew, with a space where texts begin with one. SentencePiece itself puts none after
    those of the authors, which a unigram model finds by their scores.
    """
    from tokenizers import AddedToken

    special = [piece.piece for piece in pieces if piece.type in (_UNKNOWN, _CONTROL)]
    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    if cut_by_score:
        return
    # What has spaces is looked for where they are written as in pieces; a space put before it would be part of it.
    own = [piece.piece for piece in pieces if piece.type == _USER_DEFINED and not (prefixed and SPACE in piece.piece)]
    backend.add_tokens([AddedToken(piece, special=False, normalized=SPACE in piece) for piece in own])
