"""The items of a map, read one by one and made prompts."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rekindle.client.prompts import GenerateOptions, PromptOptions, as_text, asked
from rekindle.client.requests import Requests
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, Prompt
from rekindle.core.request.checks import preview
from rekindle.mapping.template import Template
from rekindle.results.answer_table import PromptLabel

LOOKED_AT = 8
"""Items that are looked at for one that fits the template."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a map.

    Attributes:
        place: its index.
        given: the item as it was given.
        prompt: what is made of it, or the error for which it is none.
        asked: what a table shows of the prompt.
    """

    place: int
    given: Any
    prompt: Prompt | InvalidRequest
    asked: PromptLabel

    @property
    def digest(self) -> str | None:
        """The digest of the prompt, which another process computes alike; None without a prompt."""
        if isinstance(self.prompt, InvalidRequest):
            return None
        said: list[Any]
        match self.prompt:
            case Conversation(messages):
                said = ["chat", messages]
            case tuple():
                said = ["token_ids", self.prompt]
            case _:
                said = ["text", as_text(self.prompt)]
        return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:32]


def checked(items: Any, token_ids: Any) -> Iterable[Any]:
    """Return what a call gives to map over.

    Raises:
        InvalidRequest: both or neither were given, or it is one prompt, or nothing that can be iterated over.
    """
    if (items is None) == (token_ids is None):
        raise InvalidRequest("give either items or token_ids, and not both")
    given = token_ids if items is None else items
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(
            f"map() takes an iterable of texts, conversations or mappings, got {preview(given)}; generate() takes one"
        )
    return given


def read(
    items: Iterable[Any], template: Template | None, ask: GenerateOptions[Any], requests: Requests
) -> Iterator[Item]:
    """Yield each item as it is asked for, with its prompt or the error for which it has none.

    Args:
        items: those that the call gave; token ids if `ask` has them.
        template: what they fill; None for items that are prompts.
        ask: the keywords of the call.

    Raises:
        InvalidRequest: none of the first items fits the template, so none of the others would.
    """
    made = _read(items, template, ask, requests)
    if template is None:
        yield from made
        return
    first: list[Item] = []
    for item in islice(made, LOOKED_AT):
        first.append(item)
        if not isinstance(item.prompt, InvalidRequest):
            break
    else:
        if first:
            raise InvalidRequest(f"none of the first {len(first)} items fits the template: {first[0].prompt}")
    yield from first
    yield from made


def _read(
    items: Iterable[Any], template: Template | None, ask: GenerateOptions[Any], requests: Requests
) -> Iterator[Item]:
    given_options: Mapping[str, Any] = ask
    options: Any = {name: value for name, value in given_options.items() if name in PromptOptions.__annotations__}
    ids = options.pop("token_ids", None) is not None
    for place, given in enumerate(items):
        try:
            text = None if ids else _prompt(given, template)
            prompt = requests.prompt(text, options | {"token_ids": given} if ids else options)
            yield Item(place, given, prompt, asked(prompt, given))
        except InvalidRequest as error:
            yield Item(place, given, error, asked(error, given))


def _prompt(given: Any, template: Template | None) -> Any:
    if template is not None:
        return template.filled(given)
    if isinstance(given, Mapping):
        raise InvalidRequest("the item is a mapping, and there is no template that it could fill: give template=")
    if given is None:
        raise InvalidRequest("the item is None; give a text, a list of messages, or a mapping and a template")
    return given
