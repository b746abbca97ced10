"""Everything that actors say to each other. A message is frozen; a request id is the only identity in it.

Submit, Cancel ─▶ Intake ─▶ Admit, Withdraw ─▶ Scheduler ─▶ Plan ─▶ Stepper ─▶ Dispatched ─▶ Settler
                    │                            ▲   │                                        │
                    └─ Rejected ─▶ caller        │   └─▶ Output ─▶ Detokenizer ─▶ Text ─▶ caller
                                                 └────────────────── Settled ◀────────────────┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rekindle.request import Request, SamplingParams

EndReason = Literal["stop", "length", "cancelled"]
"""Why a request ended: an end token; `max_tokens` or the context; or its caller."""

Prompt = str | Sequence[Mapping[str, Any]] | tuple[int, ...]
"""Text, chat messages, or token ids."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A caller's request, not yet tokenized."""

    request_id: int
    prompt: Prompt
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Cancel:
    """A caller no longer wants the request."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Admit:
    """A tokenized and validated request joins the waiting queue."""

    request: Request


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The request is to end now, wherever it is; said after its Admit, if there was one."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request cannot be served, and why."""

    request_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of one request's tokens to compute, aligned to query blocks.

    Attributes:
        start: the position of its first token, a multiple of `QUERY_BLOCK`.
        pages: the page of each of its query blocks.
        params: given with the last chunk, after which the first token is sampled.
    """

    request_id: int
    slot: int
    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    params: SamplingParams | None


@dataclass(frozen=True, slots=True)
class Row:
    """One more token for one request, and the page that its newest token goes to."""

    request_id: int
    slot: int
    page: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scheduler decided for one tick."""

    tick: int
    chunks: tuple[Chunk, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A plan that the device works on.

    Attributes:
        sampled: (request id, index into `tokens`) of each request that gets a token from this tick.
        tokens: the device array of the tick's tokens.
    """

    tick: int
    sampled: tuple[tuple[int, int], ...]
    tokens: Any


@dataclass(frozen=True, slots=True)
class Settled:
    """The tokens of one tick, by request id."""

    tick: int
    tokens: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the waiting queue for the first time; its prompt has this many tokens."""

    request_id: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one request, surplus already dropped; its last one has an end reason."""

    request_id: int
    token_ids: tuple[int, ...]
    end: EndReason | None


@dataclass(frozen=True, slots=True)
class Text:
    """An `Output` with the text that it completes."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    end: EndReason | None


Message = Submit | Cancel | Admit | Withdraw | Rejected | Plan | Dispatched | Settled | Started | Output | Text
"""Any message."""
