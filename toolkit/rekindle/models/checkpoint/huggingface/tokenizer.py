"""The tokenizer of a Hugging Face model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rekindle.errors import CheckpointError
from rekindle.models.checkpoint.huggingface.json_file import read_json
from rekindle.models.text.tokenizer import Tokenizer, wrap


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """Read tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Returns:
        The tokenizer, or None if there is no tokenizer.json: the model is then served by token ids alone.

    Raises:
        CheckpointError: a file cannot be parsed.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(f"{path}: not a readable tokenizer ({error}). Fetch it again") from error
    backend.no_truncation()
    backend.no_padding()
    settings = read_json(directory / "tokenizer_config.json")
    bos, eos = _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token"))
    if "add_bos_token" in settings or "add_eos_token" in settings:
        # As in transformers, these entries overrule the tokens that tokenizer.json would add.
        wrap(backend, bos if settings.get("add_bos_token") else None, eos if settings.get("add_eos_token") else None)
    return Tokenizer(backend, _chat_template(directory, settings), bos, eos)


def _token_text(token: Any) -> str | None:
    """Return a special token's text, which is written as it is or as "content" of an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template of chat_template.jinja, else that of the config, else the one it names "default"."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None
