"""WordPiece tokenizers of BERT from vocab.txt, as in transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.formats.model_file import read_text

CLASSES: Final = frozenset({"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"})
"""Classes of tokenizers with vocab.txt; files without a class are of the first."""


def is_wordpiece(settings: Mapping[str, Any]) -> bool:
    """Return True if a tokenizer_config.json describes a tokenizer of BERT's kind."""
    return str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast") in CLASSES


def read_wordpiece(path: Path, settings: Mapping[str, Any]) -> Any:
    """Read a vocabulary, one piece a line, as a tokenizer.

    Args:
        path: vocab.txt.
        settings: the content of tokenizer_config.json.

    Raises:
        CheckpointError: the vocabulary lacks a special token.
    """
    pieces = {piece: index for index, piece in enumerate(read_text(path).rstrip("\n").split("\n"))}
    is_mpnet = str(settings.get("tokenizer_class")).startswith("MPNet")
    defaults = ("<s>", "</s>", "[UNK]") if is_mpnet else ("[CLS]", "[SEP]", "[UNK]")
    names = zip(("cls_token", "sep_token", "unk_token"), defaults, strict=True)
    first, last, unknown = (_text(settings.get(name)) or default for name, default in names)
    if missing := [token for token in (first, last, unknown) if token not in pieces]:
        raise CheckpointError(f"{path}: the vocabulary has no {missing[0]}. Fetch it again")
    between = f"{last}:0 {last}:0 $B:0 {last}:0" if is_mpnet else f"{last}:0 $B:1 {last}:1"
    special = [_text(settings.get(f"{name}_token")) for name in ("pad", "mask")]
    others = [token or default for token, default in zip(special, ("[PAD]", "[MASK]"), strict=True)]
    return wordpiece_backend(
        pieces,
        (first, last, unknown, *others),
        between,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def wordpiece_backend(
    pieces: Mapping[str, int],
    special: Sequence[str],
    between: str,
    *,
    lowercase: bool,
    handle_chinese_chars: bool = True,
    strip_accents: bool | None = None,
) -> Any:
    """Build a WordPiece tokenizer.

    Args:
        pieces: the ids of pieces.
        special: the special tokens, of which the first three are the first and the last of a text, and the unknown one.
        between: the template of a pair from the end of its first text on.
        lowercase: whether texts are put in lower case.
        handle_chinese_chars: whether each Chinese character is a word.
        strip_accents: whether accents are removed; None for texts in lower case.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    first, last, unknown, *_ = special
    backend = Tokenizer(models.WordPiece(dict(pieces), unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=handle_chinese_chars, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first}:0 $A:0 {between}",
        special_tokens=[(token, pieces[token]) for token in (first, last)],
    )
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special if token in pieces]
    )
    return backend


def _text(token: Any) -> str | None:
    """Return the text of a special token, a string or an object with it as "content"."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None
