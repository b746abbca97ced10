"""Unigram tokenizers of XLM-RoBERTa and like models, as in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.huggingface.sentencepiece_model import SPACE, parse_sentencepiece

if TYPE_CHECKING:
    import tokenizers

FILE: Final = "sentencepiece.bpe.model"
"""The file of an XLM-RoBERTa's vocabulary."""
FIRST, PADDING, LAST, UNKNOWN, MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
_OWN: Final = 3
"""Pieces at the start of the file that the model's first four tokens replace."""


def read_unigram(path: Path) -> tokenizers.Tokenizer:
    """Read sentencepiece.bpe.model of an XLM-RoBERTa, with the four tokens of the model at the start.

    Raises:
        UnsupportedModel: a library for reading the file is not installed.
        CheckpointError: the file is damaged, or no model of type unigram.
    """
    model = parse_sentencepiece(path)
    if model.trainer_spec.model_type != 1:
        raise CheckpointError(f"{path}: expected a SentencePiece model of type unigram. Fetch it again")
    special = [(token, 0.0) for token in (FIRST, PADDING, LAST, UNKNOWN)]
    pieces = [*special, *((piece.piece, piece.score) for piece in list(model.pieces)[_OWN:]), (MASK, 0.0)]
    backend = unigram_backend(pieces, special.index((UNKNOWN, 0.0)), model.normalizer_spec.precompiled_charsmap)
    add_special(backend, (FIRST, PADDING, LAST, UNKNOWN, MASK))
    return wrap_pairs(backend, FIRST, LAST)


def unigram_backend(
    pieces: Sequence[tuple[str, float]], unknown: int, charsmap: bytes, *, prefix: bool = True
) -> tokenizers.Tokenizer:
    """Build a tokenizer without special tokens.

    Args:
        pieces: the vocabulary, each piece with its score.
        unknown: the id of unknown pieces.
        charsmap: SentencePiece's compiled normalization; empty for none.
        prefix: whether a space is put before a text.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.Unigram(list(pieces), unknown, False))
    if charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)
    scheme = "always" if prefix else "never"
    # Runs of spaces, and spaces around a text, are no tokens: SentencePiece removes them in all of these models.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)]
    )
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return backend


def add_special(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> None:
    """Add special tokens; the mask of a word takes the space before, as in transformers."""
    from tokenizers import AddedToken

    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=token == MASK) for token in tokens]
    )


def wrap_pairs(backend: tokenizers.Tokenizer, first: str, last: str, *, doubled: bool = True) -> tokenizers.Tokenizer:
    """Set the special tokens around a text, and around and between the texts of a pair, two between as of RoBERTa."""
    from tokenizers.processors import TemplateProcessing

    between = f"{last} {last}" if doubled else last
    backend.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {between} $B {last}",
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys((first, last))],
    )
    return backend
