"""Messages between the scheduler and the grammars: the allowed next tokens of constrained requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rekindle.core.errors import RekindleError
from rekindle.core.messages.message import Message
from rekindle.core.messages.words import join_items
from rekindle.core.request.constraint import Allowed
from rekindle.core.request.request import Request


@dataclass(frozen=True, slots=True)
class Advance(Message):
    """New tokens and ends of constrained requests. From the scheduler to the grammars.

    Attributes:
        tokens: requests, each with a newly generated token; a request with several has its tokens in order.
        ended: the ids of ended requests; their grammars are released.
        running: the number of running requests, constrained or not.
        free: the number of unconstrained running requests.
        late: the ids of requests with an overdue answer; ticks no longer wait for it.
        drafts: for each request in `tokens` with drafts, the tokens that may follow, which may be none.
    """

    tokens: tuple[tuple[Request, int], ...]
    ended: tuple[int, ...] = ()
    running: int = 0
    free: int = 0
    late: tuple[int, ...] = ()
    drafts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The ids of the requests to answer."""
        return tuple(dict.fromkeys((*(request.id for request, _ in self.tokens), *self.late)))

    @property
    def requests(self) -> tuple[int, ...]:
        return (*self.answer_ids, *self.ended)

    def __str__(self) -> str:
        tokens = join_items([f"{token} for {request.id}" for request, token in self.tokens])
        parts = [
            f"token {tokens}" if tokens else "",
            f"{join_items(self.ended)} ended" if self.ended else "",
            f"{join_items(self.late)} late" if self.late else "",
        ]
        return f"Advance: {'; '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True)
class Advanced(Message):
    """The answer to an `Advance`. From the grammars to the scheduler.

    Attributes:
        outcomes: for each continued request, the allowed next tokens, or the error if there are none.
        late: the ids of requests without an answer yet; the scheduler asks again.
    """

    outcomes: tuple[tuple[int, Allowed | RekindleError], ...]
    late: tuple[int, ...] = ()

    @property
    def requests(self) -> tuple[int, ...]:
        return (*(request_id for request_id, _ in self.outcomes), *self.late)

    def __str__(self) -> str:
        parts = [f"request {each}, {_outcome(allowed)}" for each, allowed in self.outcomes]
        return f"Advanced: {join_items([*parts, *([f'{join_items(self.late)} late'] if self.late else [])])}"


def _outcome(outcome: Allowed | RekindleError) -> str:
    if isinstance(outcome, RekindleError):
        return type(outcome).__name__
    forced = f"forced [{join_items(outcome.forced)}]" if outcome.forced else ""
    complete = "complete" if outcome.complete else ""
    return " and ".join(filter(None, (forced, complete))) or "goes on"
