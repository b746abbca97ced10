"""Submission of requests: messages from callers, and between intake, tokenizer and scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import describe_error, join_items, quote
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.picture import Picture
from rekindle.core.request.repetition import RepetitionLimit
from rekindle.core.request.request import AdapterUse, AssistantTurn, Request, States
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, with the other inputs of the model's chat template.

    Attributes:
        messages: mappings with a role and a content, oldest first.
        tools: JSON schemas of the functions available to the model; None for none.
        variables: further variables of the template, by name.
        continue_final_message: whether the output continues the last message.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    continue_final_message: bool = False

    def __str__(self) -> str:
        return f"a chat of {len(self.messages)}"


class Verbatim(str):
    """A text with all its special tokens; the tokenizer adds none."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Continued:
    """Two prompts, tokenized separately, so that the tokens of `prefix` are a prefix of the whole."""

    prefix: "Prompt"
    more: "Prompt"

    def __str__(self) -> str:
        return f"{_prompt(self.prefix)} and {_prompt(self.more)}"


@dataclass(frozen=True, slots=True)
class Illustrated:
    """A raw prompt with images.

    Attributes:
        text: the text, with a placeholder for each image, or with none to have the images first.
        images: the images with their details, as `rekindle.formats.images` reads them.
    """

    text: str
    images: tuple[tuple[Any, Any], ...]

    def __str__(self) -> str:
        return f"{quote(self.text)} with {quantity(len(self.images), 'image')}"


@dataclass(frozen=True, slots=True)
class PicturedTokens:
    """Token ids with the images of some.

    Attributes:
        ids: the token ids.
        pictures: the images, in the order of their tokens.
    """

    ids: tuple[int, ...]
    pictures: tuple[Picture, ...]

    def __str__(self) -> str:
        return f"{quantity(len(self.ids), 'token')} with {quantity(len(self.pictures), 'image')}"


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Token ids of an earlier prompt, with its images.

    Attributes:
        ids: the token ids.
        images: the images in order, as in `Illustrated`.
    """

    ids: tuple[int, ...]
    images: tuple[tuple[Any, Any], ...]

    def __str__(self) -> str:
        return f"{quantity(len(self.ids), 'token')} with {quantity(len(self.images), 'image')}"


Prompt = str | Conversation | tuple[int, ...] | Continued | Illustrated | KnownTokens | PicturedTokens
"""Text, a conversation, token ids, a continued prefix, or text or token ids with images."""


def goes_on(prompt: Prompt) -> bool:
    """Return True if an output continues its prompt's text, rather than answers a conversation."""
    return prompt.continue_final_message if isinstance(prompt, Conversation) else True


@dataclass(frozen=True, slots=True)
class OutputPrefix:
    """The first tokens of an output, taken from another output instead of generated.

    Attributes:
        token_ids: the tokens, the last one chosen by the caller.
        logprobs: the log-probabilities in the other output, one for each token; None if not requested.
        weights_version: the weights that drew the tokens in the other output, as in `Generation`.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    weights_version: tuple[tuple[int, int], ...] = ()


NO_PREFIX = OutputPrefix()
"""The prefix of an output generated from its first token on."""


@dataclass(frozen=True, slots=True)
class Submit(OfRequest):
    """A caller's request, not yet tokenized. From the caller to the intake.

    Attributes:
        prompt: the prompt.
        params: the validated sampling parameters.
        hold: compute the prompt alone, and hold it in the prefix cache.
        caller: the number of the submitting task or thread. Requests of one caller are admitted in their order.
        output_prefix: the first tokens of the output.
        pooling: the pooling of the prompt's hidden states; None for none.
        started: see `Admit`.
        adapter: the request's adapter; None for none.
        turn, repetition, synthetic: see `Request`.
    """

    prompt: Prompt
    params: SamplingParams
    hold: bool = False
    caller: int = 0
    output_prefix: OutputPrefix = NO_PREFIX
    pooling: States | None = None
    started: bool = False
    adapter: AdapterUse | None = None
    repetition: RepetitionLimit | None = None
    turn: AssistantTurn | None = None
    synthetic: bool = False

    def __str__(self) -> str:
        adapter = "" if self.adapter is None else f", with adapter {self.adapter.name}"
        return (
            f"Submit: request {self.request_id}, {_prompt(self.prompt)}{adapter}{', to be held' if self.hold else ''}"
        )


@dataclass(frozen=True, slots=True)
class Cancel(OfRequest):
    """The caller cancels a request. From the caller to the intake."""


@dataclass(frozen=True, slots=True)
class Tokenize(Message):
    """Tokenize and validate a request in a worker thread. From the intake to the tokenizer."""

    submit: Submit

    @property
    def requests(self) -> tuple[int, ...]:
        return self.submit.requests

    def __str__(self) -> str:
        return f"Tokenize: request {self.submit.request_id}, {_prompt(self.submit.prompt)}"


@dataclass(frozen=True, slots=True)
class Tokenized(OfRequest):
    """The answer to a `Tokenize`. From the tokenizer to the intake.

    Attributes:
        outcome: the request, or the error that prevents serving it.
    """

    outcome: Request | Exception

    def __str__(self) -> str:
        if isinstance(self.outcome, Exception):
            return f"Tokenized: request {self.request_id}, {describe_error(self.outcome)}"
        return f"Tokenized: request {self.request_id}, {quantity(len(self.outcome.prompt), 'token')}"


@dataclass(frozen=True, slots=True)
class Admit(Message):
    """Queue a tokenized and validated request. From the intake to the scheduler.

    Attributes:
        request: the request.
        started: whether the request began in another lane. The caller already has its start and its output so far.
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
    """End a request now, or release its held prefix. From the intake to the scheduler.

    It comes after the request's `Admit`, if there is one. The request may have been rejected or ended already.
    """


@dataclass(frozen=True, slots=True)
class Rejected(OfRequest):
    """A request cannot be served. From the intake, the scheduler or the router to the caller.

    Attributes:
        error: the reason.
    """

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
