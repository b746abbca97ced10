"""Results of requests, on their way from the scheduler to callers."""

from dataclasses import dataclass

from rekindle.core.messages.message import Message, OfRequest, part
from rekindle.core.messages.words import end_suffix, first_of, join_items, quote
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason, StateSum, TokenLogprob
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class Started(OfRequest):
    """A request left the waiting queue for the first time. From the scheduler to the caller.

    Attributes:
        prompt: the prompt's tokens.
        seed: the sampling seed; None if the request has none.
        cached: the prompt tokens found in the cache, by tier.
        exchanges: the number of weight exchanges of the lane so far.
        image_tokens: the number of prompt tokens of images.
    """

    prompt: tuple[int, ...]
    seed: int | None
    cached: CachedTokens
    exchanges: int = 0
    image_tokens: int = 0

    def __str__(self) -> str:
        prompt = quantity(len(self.prompt), "prompt token")
        return f"Started: request {self.request_id}, {self.cached.total} of {prompt} cached"


@part
class Output:
    """New tokens of one request, without surplus; a part of `Outputs`. The last `Output` has an end reason.

    Attributes:
        request: the request.
        token_ids: the new tokens; empty if only the end, or something of the prompt, is new.
        end: the reason for the end of the request; None until then.
        logprobs: the log-probabilities of `token_ids`, if requested.
        prompt_logprobs: the log-probabilities of the next prompt tokens, if requested.
        states: the sum of the hidden states of the next prompt tokens, if requested.
        weights_version: the number of the weights in use for `token_ids`.
    """

    request: Request
    token_ids: tuple[int, ...]
    end: EndReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    states: StateSum | None = None
    weights_version: int = 0

    def __str__(self) -> str:
        return f"request {self.request.id}, tokens [{join_items(self.token_ids)}]{end_suffix(self.end)}"


@dataclass(frozen=True, slots=True)
class Outputs(Message):
    """The outputs of all requests with news after one step of the scheduler. From the scheduler to the detokenizer."""

    outputs: tuple[Output, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(output.request.id for output in self.outputs)

    def __str__(self) -> str:
        return f"Outputs: {'; '.join(first_of(self.outputs))}"


@dataclass(frozen=True, slots=True)
class Stopped(OfRequest):
    """A request has ended by its text: at a stop string, a call or a repetition. From the detokenizer to the scheduler.

    Attributes:
        tokens: the number of output tokens up to this end.
    """

    tokens: int

    def __str__(self) -> str:
        return f"Stopped: request {self.request_id}, after {quantity(self.tokens, 'token')}"


@part
class Text:
    """An `Output` with its decoded text; a part of `Texts`.

    Attributes:
        stopped_by: the string or token that ended the request, in its last `Text`.
        cut: the bytes of an incomplete character at the end of the output, in the last `Text`.
        end_token: the text of the token that ended the request, in the last `Text`.
        repeats_at: see `Generation`; in the last `Text`.
        Others as in `Output`.
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
    weights_version: int = 0
    repeats_at: int | None = None

    def __str__(self) -> str:
        return f"request {self.request_id}, {quote(self.text)}{end_suffix(self.end)}"


@dataclass(frozen=True, slots=True)
class Texts(Message):
    """The texts of one `Outputs`, in its order. From the detokenizer to callers."""

    texts: tuple[Text, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(text.request_id for text in self.texts)

    def __str__(self) -> str:
        return f"Texts: {'; '.join(first_of(self.texts))}"
