"""Byte-level BPE in a GGUF file: its merges, and how text is cut before them, of which the file has only a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.pre_tokenizers import PreTokenizer

# Regular expressions that cut text into pieces before merging; the pieces are the matches.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_LLAMA3 = _ENDINGS + _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _ENDINGS + _WORDS + r"\p{N}" + _REST
_SEED = _ENDINGS + _WORDS + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES
# Words of tekken and GPT-4o end where small letters are followed by a capital.
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
# The letters with a case, but for those that DeepSeek's list lacks: small Armenian, newer Georgian, mathematical.
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
class _Cutting:
    """The pre-tokenizer of one value of "tokenizer.ggml.pre".

    Attributes:
        patterns: applied one after the other, each to the pieces of the previous one.
        ignore_merges: whether a piece that is a token is taken whole, without merging.
        nfc: whether the text is normalised to Unicode's form C first.
        adds_bos: whether a prompt starts with the bos token if the metadata does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    adds_bos: bool = False


_BY_WORDS = _Cutting((_GPT2,))
_BY_DIGITS = _Cutting((r"\p{N}", _GPT2))
_OF_LLAMA3 = _Cutting((_LLAMA3,), ignore_merges=True, adds_bos=True)
_OF_GPT4 = _Cutting((_LLAMA3,))
_OF_QWEN2 = _Cutting((_QWEN2,), nfc=True)
_CUTTINGS: Final[Mapping[str, _Cutting]] = {
    "gpt-2": _BY_WORDS,
    "phi-2": _BY_WORDS,
    "granite-docling": _BY_WORDS,
    "smollm": _BY_DIGITS,
    "starcoder": _BY_DIGITS,
    "refact": _BY_DIGITS,
    "codeshell": _BY_DIGITS,
    "command-r": replace(_BY_DIGITS, nfc=True),
    "llama-bpe": _OF_LLAMA3,
    "llama3": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "pixtral": _OF_LLAMA3,
    "dbrx": _OF_GPT4,
    "smaug-bpe": _OF_GPT4,
    "chatglm-bpe": _OF_GPT4,
    "glm4": replace(_OF_GPT4, ignore_merges=True),
    "qwen2": _OF_QWEN2,
    "deepseek-r1-qwen": _OF_QWEN2,
    "stablelm2": _OF_QWEN2,
    "hunyuan": replace(_OF_QWEN2, nfc=False),
    "hunyuan-dense": _Cutting(_DEEPSEEK3),
    "deepseek-llm": _Cutting(_DEEPSEEK),
    "deepseek-v3": _Cutting(_DEEPSEEK3),
    "seed-coder": _Cutting((_SEED,)),
    "tekken": _Cutting((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": _Cutting((_GPT4O,)),
    "llama4": _Cutting((_GPT4O,)),
    "default": _Cutting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def byte_level_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], source: str
) -> tuple[tokenizers.Tokenizer, bool]:
    """Build the tokenizer of a file, without special tokens.

    Returns:
        The tokenizer, and whether a prompt starts with the bos token if the metadata does not say.

    Raises:
        UnsupportedModel: the pre-tokenizer is unknown.
        CheckpointError: tokens and merges do not fit together.
    """
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    name = metadata.get("tokenizer.ggml.pre", "default")
    cutting = _CUTTINGS.get(name)
    if cutting is None:
        raise UnsupportedModel(
            f"{source}: its pre-tokenizer is {name!r}, but only {', '.join(_CUTTINGS)} are supported. "
            "Open the model's Hugging Face directory instead"
        )
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{source}: missing tokenizer.ggml.merges, which its tokenizer needs. Fetch it again")
    vocab = {token: place for place, token in enumerate(tokens)}
    pairs = [_pair(merge, source) for merge in merges]
    try:
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=cutting.ignore_merges))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(f"{source}: its tokens and merges do not fit together ({error})") from error
    if cutting.nfc:
        backend.normalizer = normalizers.NFC()
    cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cutting.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend, cutting.adds_bos


def _pair(merge: str, source: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise CheckpointError(f"{source}: a merge must be two tokens with a space between, got {merge!r}")
    return left, right
