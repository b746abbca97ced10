"""Texts of an encoder as its files have them: cut at a length, and in lower case."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.core.models.config import ModelConfig
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.model_file import read_json

_SENTENCES: Final = "sentence_{}_config.json"
_KINDS: Final = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
"""Parts of the names of settings of sentence-transformers; the first file counts."""
_TYPES: Final = "token_type_ids"
_TYPING: Final = frozenset({"BertTokenizer", "ElectraTokenizer"})
"""Tokenizers with types by default."""
_TYPED: Final = frozenset({"bert", "electra"})
"""Families with types of the tokens of pairs by default."""


def encoder_tokenizer(tokenizer: Tokenizer, directory: Path, config: ModelConfig) -> Tokenizer:
    """Return a tokenizer with the cuts of sentence-transformers and transformers.

    Args:
        tokenizer: the tokenizer in the directory.
        directory: the model directory.
        config: the structure of the model.

    Raises:
        CheckpointError: a length in a file is wrong.
    """
    names = (_SENTENCES.format(kind) for kind in _KINDS)
    most = config.max_context
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
    return tokenizer.for_encoder(int(min(length, most)), types_pairs=_types_pairs(own, config))


def _types_pairs(settings: Mapping[str, Any], config: ModelConfig) -> bool:
    """Return True if the tokens of a pair have types, by the settings or the class of the tokenizer."""
    inputs = settings.get("model_input_names")
    if config.token_types < 2 or isinstance(inputs, list):
        return config.token_types > 1 and _TYPES in (inputs or ())
    return config.family in _TYPED or str(settings.get("tokenizer_class")).removesuffix("Fast") in _TYPING


def _lower(backend: Any) -> None:
    """Put lower case before the normalizer of a tokenizer."""
    from tokenizers import normalizers

    own = backend.normalizer
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *(() if own is None else (own,))])
