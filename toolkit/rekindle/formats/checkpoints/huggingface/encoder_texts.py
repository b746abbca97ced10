"""Texts of an encoder as its files have them: cut at a length, and in lower case."""

from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.model_file import read_json

_SENTENCES: Final = "sentence_{}_config.json"
_KINDS: Final = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
"""Parts of the names of settings of sentence-transformers; the first file counts."""


def encoder_tokenizer(tokenizer: Tokenizer, directory: Path, most: int) -> Tokenizer:
    """Return the tokenizer with the cuts of sentence-transformers and transformers.

    Args:
        tokenizer: the tokenizer in the directory.
        directory: the model directory.
        most: the most tokens of a text by the model's positions.

    Raises:
        CheckpointError: a length in a file is wrong.
    """
    names = (_SENTENCES.format(kind) for kind in _KINDS)
    sentences = next((settings for name in names if (settings := read_json(directory / name))), {})
    own = read_json(directory / "tokenizer_config.json")
    if sentences.get("do_lower_case"):
        _lower(tokenizer.backend)
    length = sentences.get("max_seq_length")
    if length is None:
        length = own.get("model_max_length", most)
    if not isinstance(length, int | float) or isinstance(length, bool) or length < 1:
        raise CheckpointError(
            f"{directory}: max_seq_length and model_max_length must be numbers of tokens, got {length!r:.80}. Fetch "
            "the files again"
        )
    return tokenizer.for_encoder(int(min(length, most)))


def _lower(backend: Any) -> None:
    """Put lower case before the normalizer of a tokenizer."""
    from tokenizers import normalizers

    own = backend.normalizer
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *(() if own is None else (own,))])
