"""Content with an effect on answers: the options of a request, and the content of a session beside them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any, Final

from rekindle.assembly.loading.identity import Part
from rekindle.client.engine_client import OpenEngine
from rekindle.core.content import Indigestible, content_digest
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.request.constraint import Constraint
from rekindle.core.request.params import SamplingParams

DIGITS = 16
"""Digits of a digest in a text."""
SHORT: Final = 60
"""Maximum number of characters of a part of an identity in a file; longer ones are stored as digests."""
LONGEST_VALUE = 120
"""Maximum number of characters of a stored option value; longer values are stored as digests."""
NAMES: Final[Mapping[Part, str]] = {
    "model": "config",
    "template": "chat_template",
    "processor": "logits_processor",
    "context": "max_context",
}
"""Names of parts of an identity in a file, where a setting or a file of a model has another."""
MODEL = "model"
"""Entry of a line with the name of the model, for readers; names are not compared."""


class Shaping:
    """Content of one session with an effect on answers, as texts to store with the answers and to compare."""

    def __init__(self, engine: OpenEngine):
        self._engine = engine

    def adapter(self, name: str | None) -> str:
        """Return the name of an adapter with a digest of its content; empty for none, and for an unknown one."""
        info = None if name is None else self._engine.client.adapters.infos.get(name)
        return "" if info is None else f"{name} #{info.digest[:DIGITS]}"

    def weights(self, versions: Sequence[int] = ()) -> str:
        """Return the digest of the weights with these numbers, or of the weights in use if there are none."""
        digests, numbers = self._engine.client.weights.digests, versions or [self._engine.client.weights.version]
        return " and ".join(dict.fromkeys(f"#{digests.get(number, '')[:DIGITS]}" for number in numbers))

    def content(self, adapter: str | None) -> dict[str, str]:
        """Return all content by name, for requests with an adapter or None.

        The tokenizer takes a moment to be read, so call it off event loops.
        """
        own = {"weights": self.weights(), "adapter": self.adapter(adapter)}
        parts = self._engine.facts.identity.taken_by("map")
        others = {NAMES.get(part, part): _short(text) for part, text in parts.items() if part != "weights"}
        return {name: each for name, each in own.items() if each} | others


def _short(text: str) -> str:
    """Return a short text unchanged, and any other as a digest."""
    return text or "none" if len(text) <= SHORT else f"#{content_digest(text)[:DIGITS]}"


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
