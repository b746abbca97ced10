"""The models of a server, by the names in requests."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import inf
from pathlib import Path
from time import time
from typing import Any, Protocol

from rekindle.core.request.checks import preview
from rekindle.formats.rendering.chat import unread_variables
from rekindle.formats.rendering.efforts import SWITCHES
from rekindle.formats.rendering.template import template_variables
from rekindle.formats.response import MessageForm
from rekindle.formats.responses.formats import PLAIN, format_of
from rekindle.server.common.errors import ApiError, invalid_field
from rekindle.server.common.messages import ModelTemplate
from rekindle.server.models.session import ServedSession


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model in use by a request.

    Attributes:
        session: the session of the model.
        base: the model's name for clients.
        name: the name in answers: the model's, or an adapter's.
        since: the start of its service, in seconds since 1970.
        aliases: the model's other names.
    """

    session: ServedSession
    base: str
    name: str
    since: int
    aliases: Sequence[str] = ()

    @property
    def adapter(self) -> str | None:
        """The adapter in the request, or None."""
        return None if self.name == self.base else self.name

    @property
    def cards(self) -> "list[ModelCard]":
        """The names of the model, and those of its adapters."""
        return cards_of((self.base, *self.aliases), self.session.adapters, self.since, self.longest)

    @property
    def form(self) -> MessageForm:
        """The message format of the chat template."""
        tokenizer = self.session.tokenizer
        return (PLAIN if tokenizer is None else format_of(tokenizer)).form

    @property
    def template(self) -> ModelTemplate:
        """The facts about the chat template."""
        tokenizer = self.session.tokenizer
        source = None if tokenizer is None else tokenizer.chat_template
        if tokenizer is None or source is None:
            return ModelTemplate(self.form, frozenset())
        variables = template_variables(source) | template_variables(tokenizer.template_with_tools or source)
        return ModelTemplate(self.form, variables)

    @property
    def end(self) -> int | None:
        """The end token of the tokenizer, or None."""
        tokenizer = self.session.tokenizer
        end = None if tokenizer is None else tokenizer.eos_token
        return None if tokenizer is None or end is None else tokenizer.backend.token_to_id(end)

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its answer together."""
        longest = self.session.settings.max_context
        assert longest is not None, "set when the session opened"
        return longest

    def without_unread(self, options: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
        """Return the keywords of a call without unread variables of the chat template.

        Raises:
            ApiError: a variable is unread, and the server is strict.
        """
        variables, tokenizer = options.get("chat_template_kwargs"), self.session.tokenizer
        if not variables or tokenizer is None:
            return options
        unread = unread_variables(variables, tokenizer.chat_template, tokenizer.tool_template)
        has_switch = any(name in variables and name not in unread for name in SWITCHES)
        notes = {name: note for name, note in unread.items() if not (has_switch and name in SWITCHES)}
        if notes and strict:
            name, note = next(iter(notes.items()))
            raise invalid_field(name if name == "reasoning_effort" else "chat_template_kwargs", note)
        return {**options, "chat_template_kwargs": {n: v for n, v in variables.items() if n not in unread} or None}

    def alias(self, name: str) -> "ServedModel":
        """Return the model for requests with another name. Answers have the base name in place of an alias."""
        return replace(self, name=self.base if name in self.aliases else name)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, empty without a tokenizer."""
        return "" if self.session.tokenizer is None else self.session.decode(tokens)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A name in the list of models.

    Attributes:
        name: the name for requests.
        base: the name of the model: its own, or that of the model of an adapter or an alias.
        is_adapter: whether the name is an adapter's.
        since: the start of its service, in seconds since 1970.
        longest: the most tokens of a prompt and its answer together; None while the model is closed.
    """

    name: str
    base: str
    is_adapter: bool
    since: int
    longest: int | None


class Models(Protocol):
    """The models of a server."""

    def use(self, name: str | None) -> AbstractAsyncContextManager[ServedModel]:
        """Hold the model of a name while a request uses it; None names the only or the first model.

        Raises:
            ApiError: no model or adapter has this name.
        """
        ...

    def use_open(self, base: str) -> AbstractAsyncContextManager[ServedModel | None]:
        """Hold the model of a base name if it is open, or else None."""
        ...

    @property
    def bases(self) -> Sequence[str]:
        """The base name of each model."""
        ...

    def base_of(self, name: str) -> str:
        """Return the base name of a model by any of its names, or those of its adapters.

        Raises:
            ApiError: no model or adapter has this name.
        """
        ...

    def keep(self, base: str, seconds: float) -> bool:
        """Set the time until an open model closes when idle; return False if the models of the server stay open."""
        ...

    def closes_in(self, base: str) -> float:
        """Return the seconds until an open model closes if no request comes; infinity for never."""
        ...

    def note_adapter(self, base: str, name: str, path: str | None) -> None:
        """Note an adapter of an open model, loaded from a path by an administrator, or unloaded if the path is None."""
        ...

    def open_models(self) -> Sequence[ServedModel]:
        """Return the models with an open session."""
        ...

    def cards(self) -> Sequence[ModelCard]:
        """Return all names of models and adapters."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Serve the models during a block, the life of the server."""
        ...


class OneModel:
    """The model of one session. It stays open.

    Args:
        session: the session.
        name: the model's name for clients, or several names (answers have the first); None or empty for the session's
            name, or the last part of a path.
    """

    def __init__(self, session: ServedSession, name: str | Sequence[str] | None):
        names = [name] if isinstance(name, str) and name else list(dict.fromkeys(name or ()))
        base, *aliases = names or [short_name(session.name)]
        self._model = ServedModel(session, base, base, int(time()), tuple(aliases))

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """See `Models`."""
        if name is not None:
            self.base_of(name)
        yield self._model.alias(name or self._model.base)

    @asynccontextmanager
    async def use_open(self, base: str) -> AsyncIterator[ServedModel | None]:
        """See `Models`."""
        yield self._model

    @property
    def bases(self) -> Sequence[str]:
        """See `Models`."""
        return [self._model.base]

    def base_of(self, name: str) -> str:
        """See `Models`."""
        return card_of(self._model.cards, name).base

    def keep(self, base: str, seconds: float) -> bool:
        """See `Models`."""
        return False

    def closes_in(self, base: str) -> float:
        """See `Models`."""
        return inf

    def note_adapter(self, base: str, name: str, path: str | None) -> None:
        """See `Models`. The session keeps its adapters."""

    def open_models(self) -> Sequence[ServedModel]:
        """See `Models`."""
        return [self._model]

    def cards(self) -> Sequence[ModelCard]:
        """See `Models`."""
        return self._model.cards

    def running(self) -> AbstractAsyncContextManager[None]:
        """See `Models`."""
        return nullcontext()


def only_base(models: Models) -> str:
    """Return the base name of the only model.

    Raises:
        ApiError: there are several.
    """
    base, *others = models.bases
    if others:
        names = ", ".join(map(repr, models.bases))
        raise invalid_field("model", f"this server has several models: name one of {names} as model")
    return base


def cards_of(own: Sequence[str], adapters: Iterable[str], since: int, longest: int | None) -> list[ModelCard]:
    """Return the cards of a model.

    Args:
        own: its names, first the base name.
        adapters: the names of its adapters; one with a name of the model has no card.
        since: the start of its service, in seconds since 1970.
        longest: the most tokens of a prompt and its answer together; None while the model is closed.
    """
    return [ModelCard(name, own[0], name not in own, since, longest) for name in dict.fromkeys((*own, *adapters))]


def card_of(cards: Sequence[ModelCard], name: str) -> ModelCard:
    """Return the first card with a name.

    Raises:
        ApiError: no card has this name.
    """
    for card in cards:
        if card.name == name:
            return card
    message = f"there is no model {preview(name, 200)}; this server has {', '.join(repr(card.name) for card in cards)}"
    raise ApiError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")


def short_name(model: str) -> str:
    """Return a model's name: the last part of a path, or "owner/name" for a model on the hub."""
    path = Path(model)
    on_the_hub = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..", "~")
    return model if on_the_hub and not path.exists() else path.name
