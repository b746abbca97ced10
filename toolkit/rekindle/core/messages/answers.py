"""How callers are answered."""

from dataclasses import dataclass

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import end_suffix, first_of, join_items, quote
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason, StateSum, TokenLogprob


@dataclass(frozen=True, slots=True)
class Started(OfRequest):
    """The request left the waiting queue for the first time.

    Attributes:
        prompt: the tokens of its prompt.
        seed: the one of its draws.
        cached: how many of its tokens need not be computed.
        exchanges: how often the lane had exchanged its weights before.
    """

    prompt: tuple[int, ...]
    seed: int | None
    cached: CachedTokens
    exchanges: int = 0

    def __str__(self) -> str:
        prompt = quantity(len(self.prompt), "prompt token")
        return f"Started: request {self.request_id}, {self.cached.total} of {prompt} cached"


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one request, surplus already dropped. The last `Output` of a request has an end reason.

    Attributes:
        logprobs: of each token, if wanted.
        prompt_logprobs: of the next tokens of its prompt, if wanted.
        states: the sum of the hidden states of the next tokens of its prompt, if wanted.
    """

    request: Request
    token_ids: tuple[int, ...]
    end: EndReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    states: StateSum | None = None

    def __str__(self) -> str:
        return f"request {self.request.id}, tokens [{join_items(self.token_ids)}]{end_suffix(self.end)}"


@dataclass(frozen=True, slots=True)
class Outputs(Message):
    """The outputs of all requests that got something from one tick, or that ended, in order."""

    outputs: tuple[Output, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(output.request.id for output in self.outputs)

    def __str__(self) -> str:
        return f"Outputs: {'; '.join(first_of(self.outputs))}"


@dataclass(frozen=True, slots=True)
class Stopped(OfRequest):
    """A request is to end, well, after this many tokens: a stop string is complete in its text."""

    tokens: int

    def __str__(self) -> str:
        return f"Stopped: request {self.request_id}, after {quantity(self.tokens, 'token')}"


@dataclass(frozen=True, slots=True)
class Text:
    """An `Output` with the text that it completes.

    Attributes:
        stopped_by: in the last one, the string or token that ended the request.
        cut: in the last one, the bytes of a character that is incomplete.
        end_token: in the last one, the text of the token that ended the request.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    end: EndReason | None
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cut: bytes = b""
    end_token: str | None = None
    states: StateSum | None = None

    def __str__(self) -> str:
        return f"request {self.request_id}, {quote(self.text)}{end_suffix(self.end)}"


@dataclass(frozen=True, slots=True)
class Texts(Message):
    """The texts of an `Outputs`, in its order."""

    texts: tuple[Text, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(text.request_id for text in self.texts)

    def __str__(self) -> str:
        return f"Texts: {'; '.join(first_of(self.texts))}"
