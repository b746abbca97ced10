"""WordPiece tokenizers of BERT from vocab.txt, as in transformers."""

from collections.abc import Mapping
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
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    pieces = {piece: index for index, piece in enumerate(read_text(path).rstrip("\n").split("\n"))}
    is_mpnet = str(settings.get("tokenizer_class")).startswith("MPNet")
    defaults = ("<s>", "</s>", "[UNK]") if is_mpnet else ("[CLS]", "[SEP]", "[UNK]")
    names = zip(("cls_token", "sep_token", "unk_token"), defaults, strict=True)
    first, last, unknown = (_text(settings.get(name)) or default for name, default in names)
    if missing := [token for token in (first, last, unknown) if token not in pieces]:
        raise CheckpointError(f"{path}: the vocabulary has no {missing[0]}. Fetch it again")
    backend = Tokenizer(models.WordPiece(pieces, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    between = f"{last}:0 {last}:0 $B:0 {last}:0" if is_mpnet else f"{last}:0 $B:1 {last}:1"
    backend.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first}:0 $A:0 {between}",
        special_tokens=[(token, pieces[token]) for token in (first, last)],
    )
    special = [_text(settings.get(f"{name}_token")) for name in ("pad", "mask")]
    tokens = [
        first,
        last,
        unknown,
        *(token or default for token, default in zip(special, ("[PAD]", "[MASK]"), strict=True)),
    ]
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in tokens if token in pieces]
    )
    return backend


def _text(token: Any) -> str | None:
    """Return the text of a special token, a string or an object with it as "content"."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None
