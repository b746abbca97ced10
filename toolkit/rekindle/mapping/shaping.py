"""Content with an effect on answers: the options of a request, and the content of a session beside them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.client.engine_client import EngineClient
from rekindle.core.content import Indigestible, content_digest
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.request.constraint import Constraint
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer

DIGITS = 16
"""Digits of a digest in a text."""
LONGEST_VALUE = 120
"""Maximum number of characters of a stored option value; longer values are stored as digests."""
MODEL = "model"
"""Entry of a line with the name of the model, for readers; names are not compared."""


class Shaping:
    """Content of one session with an effect on answers, as texts to store with the answers and to compare."""

    def __init__(self, loaded_engine: LoadedEngine, client: EngineClient):
        self._loaded_engine, self._client = loaded_engine, client

    def adapter(self, name: str | None) -> str:
        """Return the name of an adapter with a digest of its content; empty for none, and for an unknown one."""
        info = None if name is None else self._client.adapters.infos.get(name)
        return "" if info is None else f"{name} #{info.digest[:DIGITS]}"

    def weights(self, versions: Sequence[int] = ()) -> str:
        """Return the digest of the weights with these numbers, or of the weights in use if there are none."""
        digests, numbers = self._client.weights.digests, versions or [self._client.weights.version]
        return " and ".join(dict.fromkeys(f"#{digests.get(number, '')[:DIGITS]}" for number in numbers))

    def content(self, adapter: str | None) -> dict[str, str]:
        """Return all content by name, for requests with an adapter or None; call it in a thread, as `shaping_of`."""
        own = {"weights": self.weights(), "adapter": self.adapter(adapter)}
        return {name: each for name, each in own.items() if each} | shaping_of(self._loaded_engine)


def shaping_of(loaded_engine: LoadedEngine) -> dict[str, str]:
    """Return the constant content of a session by name: as text, or as a digest.

    The tokenizer takes a moment to be read, so call it off event loops.
    """
    deployment, tokenizer = loaded_engine.deployment, loaded_engine.tokenizer
    form = f" #{deployment.form.digest}" if deployment.form.kinds else ""
    return {
        "config": _short(repr(loaded_engine.model)),
        "tokenizer": _short([_tokenizer(tokenizer), sorted(loaded_engine.checkpoint.eos_ids)]),
        "chat_template": _short(None if tokenizer is None else [tokenizer.chat_template, tokenizer.tool_template]),
        "numbers": f"{deployment.numbers}{form}",
        "kernels": f"{deployment.implementation} on {deployment.platform}",
        "logits_processor": deployment.logits_processor or "none",
    }


def _short(content: object) -> str:
    return f"#{content_digest(content)[:DIGITS]}"


def _tokenizer(tokenizer: Tokenizer | None) -> object:
    """Return the content of a tokenizer, without its chat templates."""
    if tokenizer is None:
        return None
    try:
        backend: object = json.loads(tokenizer.backend.to_str())
    except Exception:  # parts in Python cannot be written
        backend = tokenizer.backend.get_vocab()
    return [backend, tokenizer.bos_token, tokenizer.eos_token, tokenizer.response_template]


def shaping_options(model: str, params: SamplingParams, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that shape the answers of a call, by name, as JSON values.

    Args:
        model: the source of the model; only its last part is returned, for readers of the file.
        params: the sampling parameters; defaults are omitted.
        options: further options of the call that shape its prompts or answers.
    """
    keywords: dict[str, Any] = {MODEL: PurePath(model).name}
    for each in fields(params):
        value = getattr(params, each.name)
        if value != each.default and each.name not in ("cache_salt", "priority"):
            keywords[each.name] = _plain(value)
    return keywords | {name: _plain(value) for name, value in options.items()}


def _plain(value: Any) -> Any:
    """Return a JSON value for an option: a number or a short text unchanged, and any other as a digest of its content.

    Raises:
        InvalidRequest: the content of the value cannot be read.
    """
    if isinstance(value, bool | int | float):
        return value
    text = value.text if isinstance(value, Constraint) else value if isinstance(value, str) else _text(value)
    if text is not None and len(text) <= LONGEST_VALUE:
        return text
    try:
        digest = content_digest(value if text is None else text)
    except Indigestible as error:
        raise InvalidRequest(f"with path=, the options of a map must have content to compare: {error}") from error
    return f"sha256:{digest}" if text is not None else f"{preview(value)} #{digest[:DIGITS]}"


def _text(value: Any) -> str | None:
    """Return a mapping or a list as JSON; None if it is not JSON."""
    try:
        return json.dumps(sorted(value) if isinstance(value, frozenset) else value)
    except (TypeError, ValueError):
        return None
