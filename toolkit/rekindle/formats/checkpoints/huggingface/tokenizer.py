"""Tokenizer of a Hugging Face model directory."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError, panics_as
from rekindle.core.text.tokenizer import Tokenizer, wrap
from rekindle.formats.checkpoints.gguf.bpe import PRE_TOKENIZERS, split_as
from rekindle.formats.checkpoints.huggingface.sentencepiece_model import read_sentencepiece
from rekindle.formats.checkpoints.huggingface.tekken import BOS, EOS, read_tekken
from rekindle.formats.checkpoints.huggingface.unigram import FILE as SENTENCEPIECE_FILE
from rekindle.formats.checkpoints.huggingface.unigram import read_unigram
from rekindle.formats.checkpoints.huggingface.wordpiece import is_wordpiece, read_wordpiece
from rekindle.formats.model_file import is_present, parse_json, read_json, read_text

_PREFIX: Final = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]|\\u00(?:5[fF]|[67][\da-fA-F])')
"""A prefix of pieces, or an escaped letter, which may be one of this key."""
DEFAULT, FOR_TOOLS = "default", "tool_use"
"""Names of chat templates in a list of several."""
_RULES: Final = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
"""Pre-tokenizers by the class of a tokenizer with vocab.json and merges.txt."""


def load_tokenizer(directory: Path, *, of_encoder: bool = False) -> Tokenizer | None:
    """Read tokenizer.json, tekken.json, tokenizer.model or vocab.json, with tokenizer_config.json and chat templates.

    Args:
        directory: the model directory.
        of_encoder: whether the model is an encoder, whose vocabulary may be in vocab.txt or sentencepiece.bpe.model.

    Returns:
        The tokenizer, or None if none of these files exists. The model is then served by token ids alone.

    Raises:
        CheckpointError: a file cannot be parsed, or the tokenizer lacks a token.
        UnsupportedModel: a library for reading tokenizer.model is not installed.
    """
    settings = read_json(directory / "tokenizer_config.json")
    bos, eos = _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token"))
    if is_present(directory / "tokenizer.json"):
        backend = _from_json(directory / "tokenizer.json")
    elif is_present(directory / "tekken.json"):
        backend, bos, eos = read_tekken(directory / "tekken.json"), bos or BOS, eos or EOS
        settings = {"add_bos_token": True, **settings}
    elif is_present(directory / "tokenizer.model"):
        # As in transformers: the default is the legacy behaviour.
        prefix_once = settings.get("legacy") is False
        backend, model_bos, model_eos = read_sentencepiece(directory / "tokenizer.model", prefix_once)
        bos, eos = bos or model_bos, eos or model_eos
        _add_missing_tokens(backend, directory, settings)
        settings = {"add_bos_token": bos is not None, **settings}
    elif is_present(directory / "merges.txt") and (rule := _rule(settings)):
        backend = _from_merges(directory, rule)
        _add_missing_tokens(backend, directory, settings)
    elif of_encoder and is_present(directory / "vocab.txt") and is_wordpiece(settings):
        backend = read_wordpiece(directory / "vocab.txt", settings)
    elif of_encoder and is_present(directory / SENTENCEPIECE_FILE):
        backend = read_unigram(directory / SENTENCEPIECE_FILE)
    else:
        return None
    backend.no_truncation()
    backend.no_padding()
    if not of_encoder and ("add_bos_token" in settings or "add_eos_token" in settings):
        # As in transformers, these entries override the post-processor of tokenizer.json.
        around = bos if settings.get("add_bos_token") else None, eos if settings.get("add_eos_token") else None
        if missing := [token for token in around if token and backend.token_to_id(token) is None]:
            raise CheckpointError(
                f"{directory}: the tokenizer must add {missing[0]!r} to each prompt, but has no such token. Fetch its "
                "files again"
            )
        wrap(backend, *around)
    response = settings.get("response_template")
    response_template = response if isinstance(response, Mapping) else None
    templates = chat_templates(directory, settings)
    return Tokenizer(backend, templates.get(DEFAULT), bos, eos, response_template, templates.get(FOR_TOOLS))


def _from_json(path: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    _check_merges(path)
    try:
        with panics_as(ValueError):
            return Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(f"{path}: not a readable tokenizer ({error}). Fetch it again") from error


def _check_merges(path: Path) -> None:
    """Check the merges of a model with a prefix of pieces, which the library cuts off their bytes without a look.

    Raises:
        CheckpointError: a piece is without the prefix; the library would end the process.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if _PREFIX.search(data) is None:  # so that large files are not parsed twice
        return
    content = parse_json(data, path)
    model = content.get("model") if isinstance(content, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        pieces = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(pieces, list) and pieces and not str(pieces[-1]).startswith(prefix):
            raise CheckpointError(
                f"{path}: the piece {pieces[-1]!r:.80} of a merge is without the prefix {prefix!r:.80}. Fetch it again"
            )


def _rule(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the pre-tokenizer of a class, with or without "Fast" in its name; None for another class."""
    return _RULES.get(str(settings.get("tokenizer_class")).removesuffix("Fast"))


def _from_merges(directory: Path, rule: str) -> Any:
    """Read vocab.json and merges.txt.

    Raises:
        CheckpointError: one is missing or malformed.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    is_present(directory / "vocab.json")  # raises for a lost link and a pointer
    try:
        with panics_as(ValueError):
            backend = Backend(models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt")))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(
            f"{directory}: vocab.json and merges.txt are not a readable tokenizer ({error}). Fetch them again"
        ) from error
    split_as(backend, PRE_TOKENIZERS[rule])
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_missing_tokens(backend: Any, directory: Path, settings: Mapping[str, Any]) -> None:
    """Add the tokens missing from the vocabulary, under their declared ids.

    Raises:
        CheckpointError: the ids are not contiguous.
    """
    from tokenizers import AddedToken

    added_tokens = {token: (token_id, False) for token, token_id in read_json(directory / "added_tokens.json").items()}
    for token_id, entry in settings.get("added_tokens_decoder", {}).items():
        added_tokens[entry["content"]] = int(token_id), bool(entry.get("special"))
    for token, (token_id, special) in sorted(added_tokens.items(), key=lambda item: item[1]):
        added_token = AddedToken(token, special=special, normalized=False)
        (backend.add_special_tokens if special else backend.add_tokens)([added_token])
        if backend.token_to_id(token) != token_id:
            raise CheckpointError(
                f"{directory}: the added token {token!r} should have the id {token_id}, and the tokens before it end "
                f"at {backend.token_to_id(token) - 1}. Fetch the model again, or save its tokenizer as tokenizer.json"
            )


def _token_text(token: Any) -> str | None:
    """Return the text of a special token, stored as a string or in "content" of an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def chat_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, from the first place with a template of this name.

    As in transformers, the places are chat_template.jinja and additional_chat_templates/*.jinja, the tokenizer's
    config, and the config of the processor of a model for images or audio.
    """
    by_name = _named_templates(read_json(directory / "processor_config.json").get("chat_template"))
    by_name |= _named_templates(read_json(directory / "chat_template.json").get("chat_template"))
    by_name |= _named_templates(settings.get("chat_template"))
    for path in (directory / "additional_chat_templates").glob("*.jinja"):
        by_name[path.stem] = read_text(path) if is_present(path) else ""
    path = directory / "chat_template.jinja"
    if is_present(path):
        by_name[DEFAULT] = read_text(path)
    return by_name


def _named_templates(templates: Any) -> dict[str, str]:
    """Return the templates in a config: a text, a list of objects with a name, or an object by name."""
    if isinstance(templates, Mapping):
        templates = [{"name": name, "template": template} for name, template in templates.items()]
    if not isinstance(templates, list):
        templates = [{"name": DEFAULT, "template": templates}]
    entries = [entry for entry in templates if isinstance(entry, Mapping)]
    texts = [(entry.get("name"), entry.get("template")) for entry in entries]
    return {name: text for name, text in texts if isinstance(name, str) and isinstance(text, str)}
