"""What a caller gets back: pieces as they come, the whole at the end, and what is known about it."""

from dataclasses import dataclass, field
from typing import Any, Literal

EndReason = Literal["stop", "length", "cancelled", "held"]
"""Why a request ended: an end token or a stop string; `max_tokens` or the context; its caller; or, of a prefix that was
asked for, that it is computed."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was by the model alone, before any sampling parameter.

    Attributes:
        token_id: the token.
        text: the text of this token by itself; U+FFFD where it is a part of a character.
        logprob: natural logarithm of its probability.
        rank: its place among all tokens; 1 is the likeliest.
        top: the likeliest tokens at this place, as many as were asked for, the likeliest first; theirs are empty.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple["TokenLogprob", ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a generation, as soon as it is settled.

    Attributes:
        text: the text that these tokens complete; empty while a character, or what may be a stop string, is incomplete.
        token_ids: one token, as a rule.
        logprobs: one for each token; None unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    Attributes:
        prompt_tokens: tokens in the prompt, those of the chat template included.
        completion_tokens: tokens generated, the one that ended it included.
    """

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the request was submitted, on its caller's side.

    Attributes:
        queued: until it left the waiting queue.
        first_token: until its first token came.
        total: until its end.
    """

    queued: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request. Two are equal if they say the same, however it came about.

    Attributes:
        text: the generated text without special tokens; empty for a model without a tokenizer.
        token_ids: every generated token, the one that ended it included.
        finish_reason: "stop" for an end token or a stop string, "length" for `max_tokens` or the context.
        stopped_by: the stop string, or the id of the end token; None for "length".
        logprobs: one for each of `token_ids`; None unless asked for.
        prompt_logprobs: one for each token of the prompt, None for its first; None unless asked for.
        usage: tokens of prompt and output.
        timings: seconds to its stages.
        cached_tokens: tokens of the prompt that were not computed for it, but found in the prefix cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: EndReason
    stopped_by: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    usage: Usage
    timings: Timings = field(compare=False)
    cached_tokens: int = field(compare=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        said = self.text if self.text or isinstance(self.stopped_by, str) else self.token_ids
        return f"<rekindle.Generation {self._ending()}: {said!r}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """As the result of a cell, the text as it is; in a list, one line each."""
        alone = self.text and not printer.indentation
        printer.text(f"{self.text}\n[{self._ending()}]" if alone else repr(self))

    def _ending(self) -> str:
        match self.stopped_by:
            case None:
                by = ""
            case str():
                by = f" at {self.stopped_by!r}"
            case token:
                by = f" at end token {token}"
        return f"ended: {self.finish_reason}{by}, {counted(self.token_ids)}"


def counted(tokens: tuple[int, ...] | list[int]) -> str:
    """How many tokens, in words."""
    return f"{len(tokens)} token{'s' * (len(tokens) != 1)}"
