"""What callers ask, and the way of a request to the scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import describe_error, join_items, quote
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Pooling, Request
from rekindle.core.request.tokens import TokenLogprob


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, and what else the model's chat template reads.

    Attributes:
        messages: mappings with a role and a content, oldest first.
        tools: JSON schemas of the functions that the model may call; None for none.
        variables: further variables of the template, by name.
        continue_final_message: whether the last message is left open, to be continued.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    continue_final_message: bool = False

    def __str__(self) -> str:
        return f"a chat of {len(self.messages)}"


class Verbatim(str):
    """A text that has all its special tokens in it, so that the tokenizer adds none around it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Continued:
    """Two texts, or token ids, each tokenized by itself, so that the tokens of the first begin those of the whole."""

    prefix: "Prompt"
    more: "Prompt"

    def __str__(self) -> str:
        return f"{_prompt(self.prefix)} and {_prompt(self.more)}"


Prompt = str | Conversation | tuple[int, ...] | Continued
"""Text, a conversation, token ids, or a continued prefix."""


def goes_on(prompt: Prompt) -> bool:
    """Tell whether an output goes on with its prompt's text, and does not answer a conversation."""
    return prompt.continue_final_message if isinstance(prompt, Conversation) else True


@dataclass(frozen=True, slots=True)
class OutputPrefix:
    """The beginning of an output that is given instead of generated: that of another output, up to a chosen token.

    Attributes:
        token_ids: its tokens.
        logprobs: one for each of them, as they are known of the other output; None if they are not asked for.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


NO_PREFIX = OutputPrefix()
"""The beginning of an output that is generated from its first token on."""


@dataclass(frozen=True, slots=True)
class Submit(OfRequest):
    """A caller's request, not yet tokenized.

    Attributes:
        hold: whether only its prompt is to be computed, and held in the prefix cache.
        caller: the task or thread that submitted it, as a number. Requests of one caller are admitted in their order.
        output_prefix: what its output begins with.
        pooling: which hidden states of its prompt are wanted; None for none.
        started: as in `Admit`.
    """

    prompt: Prompt
    params: SamplingParams
    hold: bool = False
    caller: int = 0
    output_prefix: OutputPrefix = NO_PREFIX
    pooling: Pooling | None = None
    started: bool = False

    def __str__(self) -> str:
        return f"Submit: request {self.request_id}, {_prompt(self.prompt)}{', to be held' if self.hold else ''}"


@dataclass(frozen=True, slots=True)
class Cancel(OfRequest):
    """A caller no longer wants the request."""


@dataclass(frozen=True, slots=True)
class Tokenize(Message):
    """A request is to be tokenized and checked, which may take long."""

    submit: Submit

    @property
    def requests(self) -> tuple[int, ...]:
        return self.submit.requests

    def __str__(self) -> str:
        return f"Tokenize: request {self.submit.request_id}, {_prompt(self.submit.prompt)}"


@dataclass(frozen=True, slots=True)
class Tokenized(OfRequest):
    """The answer to a `Tokenize`: the request, or the error for which it cannot be served."""

    outcome: Request | Exception

    def __str__(self) -> str:
        if isinstance(self.outcome, Exception):
            return f"Tokenized: request {self.request_id}, {describe_error(self.outcome)}"
        return f"Tokenized: request {self.request_id}, {quantity(len(self.outcome.prompt), 'token')}"


@dataclass(frozen=True, slots=True)
class Admit(Message):
    """A tokenized and validated request joins the waiting queue.

    Attributes:
        started: whether it began in another lane, which has told of its start and of its output until now.
    """

    request: Request
    started: bool = False

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request.id,)

    def __str__(self) -> str:
        return f"Admit: request {self.request.id}, {quantity(len(self.request.prompt), 'prompt token')}"


@dataclass(frozen=True, slots=True)
class Withdraw(OfRequest):
    """The request is to end now, wherever it is. If it was admitted, its `Admit` was said before.

    It may come for a request that was never admitted, because it was rejected, and for one that has ended.
    """


@dataclass(frozen=True, slots=True)
class Rejected(OfRequest):
    """The request cannot be served; `error` says why."""

    error: Exception

    def __str__(self) -> str:
        return f"Rejected: request {self.request_id}, {describe_error(self.error)}"


def _prompt(prompt: Prompt) -> str:
    match prompt:
        case str():
            return quote(prompt)
        case tuple():
            return f"token ids [{join_items(prompt)}]"
    return str(prompt)
