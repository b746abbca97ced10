"""Rebuilding the tokenizer in a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rekindle.errors import CheckpointError, UnsupportedModel
from rekindle.models.text.tokenizer import Tokenizer, wrap

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # types of tokens that are not plain text

# Regular expressions that cut text into pieces before merging; the pieces are the matches.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + _WORDS + r"\p{N}" + _REST


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


_CUTTINGS: Mapping[str, _Cutting] = {
    "gpt-2": _Cutting((_GPT2,)),
    "smollm": _Cutting((r"\p{N}", _GPT2)),
    "llama-bpe": _Cutting((_LLAMA3,), ignore_merges=True, adds_bos=True),
    "llama3": _Cutting((_LLAMA3,), ignore_merges=True, adds_bos=True),
    "qwen2": _Cutting((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": _Cutting((_QWEN2,), nfc=True),
    "default": _Cutting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> Tokenizer | None:
    """Rebuild the tokenizer from a file's metadata; None if it has none: the model is then served by token ids alone.

    Raises:
        UnsupportedModel: the tokenizer is not byte-level BPE, or its pre-tokenizer is unknown.
        CheckpointError: tokens, types and merges do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    if kind != "gpt2":
        raise UnsupportedModel(
            f'{source}: its tokenizer is of the kind {kind!r}, but only "gpt2" (byte-level BPE) is supported. '
            "Open the model's Hugging Face directory instead"
        )
    cutting = _cutting(metadata, source)
    tokens = _list(metadata, "tokenizer.ggml.tokens", source)
    merges = [_merge(merge, source) for merge in _list(metadata, "tokenizer.ggml.merges", source)]
    backend = _backend(tokens, merges, cutting, source)
    _add_special(backend, tokens, metadata.get("tokenizer.ggml.token_type"), source)
    bos, eos = (_token(metadata, f"tokenizer.ggml.{end}_token_id", tokens, source) for end in ("bos", "eos"))
    before = bos if metadata.get("tokenizer.ggml.add_bos_token", cutting.adds_bos) else None
    wrap(backend, before, eos if metadata.get("tokenizer.ggml.add_eos_token") else None)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, template if isinstance(template, str) else None, bos, eos)


def _backend(tokens: Sequence[str], merges: list[tuple[str, str]], cutting: _Cutting, source: str) -> Any:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocab = {token: place for place, token in enumerate(tokens)}
    try:
        backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=cutting.ignore_merges))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(f"{source}: its tokens and merges do not fit together ({error})") from error
    if cutting.nfc:
        backend.normalizer = normalizers.NFC()
    cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cutting.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_special(backend: Any, tokens: Sequence[str], types: Any, source: str) -> None:
    """Add the tokens that are found in text before it is cut: special ones, and those of the model's authors."""
    if types is None:
        return
    if len(types) != len(tokens):
        raise CheckpointError(f"{source}: {len(tokens)} tokens, but {len(types)} token types")
    from tokenizers import AddedToken

    for special, kinds in ((True, (_CONTROL, _UNKNOWN)), (False, (_USER_DEFINED,))):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if token and kind in kinds
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)


def _cutting(metadata: Mapping[str, Any], source: str) -> _Cutting:
    name = metadata.get("tokenizer.ggml.pre", "default")
    cutting = _CUTTINGS.get(name)
    if cutting is None:
        raise UnsupportedModel(
            f"{source}: its pre-tokenizer is {name!r}, but only {', '.join(_CUTTINGS)} are supported. "
            "Open the model's Hugging Face directory instead"
        )
    return cutting


def _token(metadata: Mapping[str, Any], key: str, tokens: Sequence[str], source: str) -> str | None:
    place = metadata.get(key)
    if place is None:
        return None
    if not isinstance(place, int) or not 0 <= place < len(tokens):
        raise CheckpointError(f"{source}: {key} must be one of {len(tokens)} tokens, got {place}")
    return tokens[place]


def _list(metadata: Mapping[str, Any], key: str, source: str) -> Sequence[str]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise CheckpointError(f"{source}: missing {key}, which its tokenizer needs. Fetch the file again")
    return value


def _merge(merge: str, source: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise CheckpointError(f"{source}: a merge must be two tokens with a space between, got {merge!r}")
    return left, right
