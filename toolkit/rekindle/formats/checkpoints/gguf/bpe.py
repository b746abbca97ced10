"""Byte-level BPE of GGUF files: merges, and pre-tokenizers. A file contains only the name of its pre-tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import PreTokenizer

# Regular expressions for splitting text before merging. Each match is a piece.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_LLAMA3 = _ENDINGS + _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _ENDINGS + _WORDS + r"\p{N}" + _REST
_SEED = _ENDINGS + _WORDS + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES
# In tekken and GPT-4o, a word ends between a lowercase letter and a capital.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _CASED_REST
_GPT4O = "|".join(f"{word}{_ENDINGS}?" for word in _CASED) + r"|\p{N}{1,3}" + _CASED_REST
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
# Cased letters, except the ones missing from DeepSeek's list: small Armenian, newer Georgian, mathematical.
_OLD_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c88}\x{2d00}-\x{2d2d}\x{a790}-\x{a7ff}"
    r"\x{ab30}-\x{ab68}\x{10570}-\x{105bf}\x{16e40}-\x{16e7f}\x{1d400}-\x{1d7ff}\x{1df00}-\x{1dfff}]]"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?{_OLD_CASED}+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """The pre-tokenizer for one value of "tokenizer.ggml.pre".

    Attributes:
        patterns: split patterns, each applied to the pieces of the previous one.
        ignore_merges: whether a piece in the vocabulary becomes one token without merging.
        nfc: whether text is first normalised to Unicode form C.
        adds_bos: whether a prompt starts with the bos token by default.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    adds_bos: bool = False


_GPT2_WORDS = PreTokenizerRule((_GPT2,))
_SINGLE_DIGITS = PreTokenizerRule((r"\p{N}", _GPT2))
_LLAMA3_BPE = PreTokenizerRule((_LLAMA3,), ignore_merges=True, adds_bos=True)
_GPT4_BPE = PreTokenizerRule((_LLAMA3,))
_QWEN2_BPE = PreTokenizerRule((_QWEN2,), nfc=True)
PRE_TOKENIZERS: Final[Mapping[str, PreTokenizerRule]] = {
    "gpt-2": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "granite-docling": _GPT2_WORDS,
    "roberta-bpe": _GPT2_WORDS,
    "jina-v1-en": _GPT2_WORDS,
    "jina-v2-code": _GPT2_WORDS,
    "jina-v2-de": _GPT2_WORDS,
    "jina-v2-es": _GPT2_WORDS,
    "modern-bert": replace(_GPT2_WORDS, nfc=True),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "command-r": replace(_SINGLE_DIGITS, nfc=True),
    "llama-bpe": _LLAMA3_BPE,
    "llama3": _LLAMA3_BPE,
    "llama-v3": _LLAMA3_BPE,
    "pixtral": _LLAMA3_BPE,
    "dbrx": _GPT4_BPE,
    "smaug-bpe": _GPT4_BPE,
    "chatglm-bpe": _GPT4_BPE,
    "glm4": replace(_GPT4_BPE, ignore_merges=True),
    "qwen2": _QWEN2_BPE,
    "deepseek-r1-qwen": _QWEN2_BPE,
    "stablelm2": _QWEN2_BPE,
    "hunyuan": replace(_QWEN2_BPE, nfc=False),
    "hunyuan-dense": PreTokenizerRule(_DEEPSEEK3),
    "deepseek-llm": PreTokenizerRule(_DEEPSEEK),
    "deepseek-v3": PreTokenizerRule(_DEEPSEEK3),
    "seed-coder": PreTokenizerRule((_SEED,)),
    "tekken": PreTokenizerRule((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizerRule((_GPT4O,)),
    "llama4": PreTokenizerRule((_GPT4O,)),
    "default": PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
"""The pre-tokenizers by their names in files."""


def byte_level_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], source: str
) -> tuple[tokenizers.Tokenizer, bool]:
    """Build the tokenizer of a file, without special tokens.

    Args:
        metadata: the file's metadata.
        tokens: the vocabulary.
        source: path of the file, for error messages.

    Returns:
        The tokenizer, and whether a prompt starts with the bos token by default.

    Raises:
        UnsupportedModel: the pre-tokenizer is unknown.
        CheckpointError: tokens and merges do not fit together.
    """
    from tokenizers import decoders, models

    name = metadata.get("tokenizer.ggml.pre", "default")
    pre_tokenizer = PRE_TOKENIZERS.get(name)
    if pre_tokenizer is None:
        raise UnsupportedModel(
            f"{source}: its pre-tokenizer is {name!r}, but only {', '.join(PRE_TOKENIZERS)} are supported. "
            "Open the model's Hugging Face directory instead"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = stored_merges(metadata, source)
    backend = backend_of(partial(models.BPE, vocab=vocab, merges=merges), source)
    split_as(backend, pre_tokenizer)
    backend.decoder = decoders.ByteLevel()
    return backend, pre_tokenizer.adds_bos


def split_as(backend: tokenizers.Tokenizer, rule: PreTokenizerRule) -> None:
    """Let a byte-level tokenizer normalise and split texts by a rule."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    backend.model.ignore_merges = rule.ignore_merges
    backend.normalizer = normalizers.NFC() if rule.nfc else None
    splits: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])


def stored_merges(metadata: Mapping[str, Any], source: str) -> list[tuple[str, str]]:
    """Return the merges of a file, first ones first.

    Raises:
        CheckpointError: they are missing, or one is not a pair of tokens.
    """
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{source}: missing tokenizer.ggml.merges, which its tokenizer needs. Fetch it again")
    return [_pair(merge, source) for merge in merges]


def backend_of(model: Callable[[], BPE], source: str) -> tokenizers.Tokenizer:
    """Return the tokenizer of a model.

    Raises:
        CheckpointError: tokens and merges do not fit together.
    """
    from tokenizers import Tokenizer as Backend

    try:
        return Backend(model())
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(f"{source}: its tokens and merges do not fit together ({error})") from error


def _pair(merge: str, source: str) -> tuple[str, str]:
    first, space, second = merge.partition(" ")
    if not (first and space and second):
        raise CheckpointError(f"{source}: a merge must be two tokens with a space between, got {merge!r}")
    return first, second
