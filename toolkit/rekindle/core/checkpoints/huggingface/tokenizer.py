"""The tokenizer of a Hugging Face model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rekindle.core.checkpoints.huggingface.json_file import read_json
from rekindle.core.checkpoints.huggingface.sentencepiece_model import read_sentencepiece
from rekindle.core.errors import CheckpointError
from rekindle.core.text.tokenizer import Tokenizer, wrap

DEFAULT, FOR_TOOLS = "default", "tool_use"
"""The names of chat templates, where there are several."""


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """Read tokenizer.json, or else tokenizer.model, with tokenizer_config.json and chat_template.jinja.

    Returns:
        The tokenizer, or None if there is neither: the model is then served by token ids alone.

    Raises:
        CheckpointError: a file cannot be parsed.
        UnsupportedModel: there is a tokenizer.model alone, and what reads it is not installed.
    """
    settings = read_json(directory / "tokenizer_config.json")
    bos, eos = _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token"))
    if (directory / "tokenizer.json").is_file():
        backend = _from_json(directory / "tokenizer.json")
    elif (directory / "tokenizer.model").is_file():
        # As in transformers, where this is the default, and what is called legacy too.
        prefix_once = settings.get("legacy") is False
        backend, own_bos, own_eos = read_sentencepiece(directory / "tokenizer.model", prefix_once)
        bos, eos = bos or own_bos, eos or own_eos
        _add_later_tokens(backend, directory, settings)
        settings = {"add_bos_token": bos is not None, **settings}
    else:
        return None
    backend.no_truncation()
    backend.no_padding()
    if "add_bos_token" in settings or "add_eos_token" in settings:
        # As in transformers, these entries overrule the tokens that tokenizer.json would add.
        wrap(backend, bos if settings.get("add_bos_token") else None, eos if settings.get("add_eos_token") else None)
    response = settings.get("response_template")
    own = response if isinstance(response, Mapping) else None
    templates = _chat_templates(directory, settings)
    return Tokenizer(backend, templates.get(DEFAULT), bos, eos, own, templates.get(FOR_TOOLS))


def _from_json(path: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointError(f"{path}: not a readable tokenizer ({error}). Fetch it again") from error


def _add_later_tokens(backend: Any, directory: Path, settings: Mapping[str, Any]) -> None:
    """Add the tokens that a model got after its SentencePiece model was made, under the ids that they have.

    Raises:
        CheckpointError: there is no token for an id between two of them.
    """
    from tokenizers import AddedToken

    later = {token: (place, False) for token, place in read_json(directory / "added_tokens.json").items()}
    for place, entry in settings.get("added_tokens_decoder", {}).items():
        later[entry["content"]] = int(place), bool(entry.get("special"))
    for token, (place, special) in sorted(later.items(), key=lambda item: item[1]):
        added = AddedToken(token, special=special, normalized=False)
        (backend.add_special_tokens if special else backend.add_tokens)([added])
        if backend.token_to_id(token) != place:
            raise CheckpointError(
                f"{directory}: the added token {token!r} should have the id {place}, and the tokens before it end at "
                f"{backend.token_to_id(token) - 1}. Fetch the model again, or save its tokenizer as tokenizer.json"
            )


def _token_text(token: Any) -> str | None:
    """Return a special token's text, which is written as it is or as "content" of an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _chat_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name: those of files, and of the config where there is no file of the name.

    As in transformers, the files are chat_template.jinja and those of the folder additional_chat_templates.
    """
    named = settings.get("chat_template")
    if not isinstance(named, list):
        named = [{"name": DEFAULT, "template": named}]
    entries = [entry for entry in named if isinstance(entry, Mapping)]
    found = {entry["name"]: entry["template"] for entry in entries if isinstance(entry.get("template"), str)}
    for path in (directory / "additional_chat_templates").glob("*.jinja"):
        found[path.stem] = path.read_text(encoding="utf-8")
    path = directory / "chat_template.jinja"
    if path.is_file():
        found[DEFAULT] = path.read_text(encoding="utf-8")
    return found
