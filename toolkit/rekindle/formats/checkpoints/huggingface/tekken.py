"""Tokenizers in tekken.json, Mistral's own format: special tokens, then byte strings by rank, and a split pattern."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.core.text.byte_alphabet import byte_alphabet
from rekindle.formats.model_file import read_json

if TYPE_CHECKING:
    import tokenizers

BOS: Final = "<s>"
EOS: Final = "</s>"
# fmt: off
_OLDER_SPECIAL: Final = (
    "<unk>", BOS, EOS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)
# fmt: on
"""Default special tokens, for files without a list."""


def read_tekken(path: Path) -> tokenizers.Tokenizer:
    """Build the tokenizer of a tekken.json. Ids of byte strings follow those of special tokens.

    Raises:
        CheckpointError: the file is damaged, or lacks an entry.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    content = read_json(path)
    try:
        config: Mapping[str, Any] = content["config"]
        count, size = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
        if not 0 <= count <= size:
            raise ValueError(f"expected at most {size} special tokens, got {count}")
        ranks = _ranks(content["vocab"], size - count)
        special = _special_tokens(content.get("special_tokens"), count)
        vocab = {token: index for index, (token, _) in enumerate(special)}
        vocab |= {_text(piece): count + rank for piece, rank in ranks.items()}
        split = pre_tokenizers.Split(_pattern(config["pattern"]), "isolated")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"{path}: not a readable tekken tokenizer ({type(error).__name__}: {error}). Fetch it again"
        ) from error
    merges = [(_text(first), _text(second)) for first, second in _merges(ranks)]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    for token, is_control in special:
        added = AddedToken(token, special=is_control, normalized=False)
        (backend.add_special_tokens if is_control else backend.add_tokens)([added])
    return backend


def _pattern(text: str) -> tokenizers.Regex:
    """Return the split pattern.

    Raises:
        ValueError: it is not a regular expression.
    """
    from tokenizers import Regex

    try:
        return Regex(text)
    except TypeError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"the pattern {text!r:.80} is not a regular expression, {error}") from error


def _ranks(vocab: Sequence[Mapping[str, Any]], count: int) -> dict[bytes, int]:
    """Return the rank of each byte string, the first `count` of the file.

    Raises:
        ValueError: ranks are missing or repeated.
    """
    ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in vocab[:count]}
    if sorted(ranks.values()) != list(range(count)):
        raise ValueError(f"expected {count} byte strings with the ranks from 0 to {count - 1}")
    return ranks


def _special_tokens(entries: Sequence[Mapping[str, Any]] | None, count: int) -> list[tuple[str, bool]]:
    """Return the text of each special token by id, and whether it is a control token. Gaps have fillers.

    Raises:
        ValueError: the file has more special tokens than ids for them.
    """
    tokens = [(f"<SPECIAL_{index}>", True) for index in range(count)]
    if entries is None:
        entries = [{"rank": index, "token_str": text, "is_control": True} for index, text in enumerate(_OLDER_SPECIAL)]
    if len(entries) > count:
        raise ValueError(f"expected at most {count} special tokens, got {len(entries)}")
    for entry in entries:
        tokens[int(entry["rank"])] = str(entry["token_str"]), bool(entry.get("is_control", True))
    return tokens


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the merges: pairs of byte strings, by the rank of the merged string."""

    def pairs() -> Iterator[tuple[int, int, int, bytes, bytes]]:
        for piece, rank in ranks.items():
            for index in range(1, len(piece)):
                first, second = piece[:index], piece[index:]
                if first in ranks and second in ranks:
                    yield rank, ranks[first], ranks[second], first, second

    return [(first, second) for *_, first, second in sorted(pairs())]


def _text(piece: bytes) -> str:
    """Return a byte string in the alphabet of byte-level tokenizers."""
    return piece.decode("latin-1").translate(_LETTERS)


_LETTERS: Final = {byte: letter for letter, byte in byte_alphabet().items()}
