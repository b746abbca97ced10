"""What a trace keeps of a message: words and small facts, and nothing that the message carries."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rekindle.engine.handled import Handled
from rekindle.engine.message_words import in_words
from rekindle.messages import (
    Admit,
    Cancel,
    Chunk,
    Dispatched,
    Fetch,
    Fetched,
    Message,
    Output,
    Plan,
    Rejected,
    Settled,
    Started,
    Stopped,
    Submit,
    Text,
    Withdraw,
)


class Joined(NamedTuple):
    """A request joined the waiting queue."""

    request: int
    prompt: int
    hold: bool


class Begun(NamedTuple):
    """A request left the waiting queue for the first time; `cached` tokens of its prompt were found."""

    request: int
    prompt: int
    cached: int


class Part(NamedTuple):
    """A chunk of a plan."""

    request: int
    start: int
    tokens: int
    samples: bool


class Planned(NamedTuple):
    """A plan was made: its chunks, who gets one more token, pages that are copied in for it, and who lost theirs."""

    tick: int
    chunks: tuple[Part, ...]
    rows: tuple[int, ...]
    onloaded: int
    preempted: tuple[int, ...]


class Sent(NamedTuple):
    """A plan was given to the device."""

    tick: int


class Read(NamedTuple):
    """What a tick gave was read back."""

    tick: int


class Given(NamedTuple):
    """The scheduler took in what a tick gave: a token for each of these requests."""

    tick: int
    requests: tuple[int, ...]


class Cut(NamedTuple):
    """A stop string was found in the text of a request, which so ends after this many tokens."""

    request: int
    tokens: int


class Over(NamedTuple):
    """A request ended: "stop", "length", "cancelled", "held" or "rejected", and why if it was rejected."""

    request: int
    how: str
    why: str


Fact = Joined | Begun | Planned | Sent | Read | Given | Cut | Over
"""What a timeline is made of."""


class Seen(NamedTuple):
    """One message that an actor took, as it is kept.

    Attributes:
        actor: its name.
        kind: of the message.
        words: the message in words.
        said: its answers in words, in order.
        tick: the tick that the message is about, if any.
        requests: the ids of the requests that it is about.
        began, ended: when the actor took it and when it had answered, in seconds since the trace began.
        facts: of the message and its answers, in order.
    """

    actor: str
    kind: str
    words: str
    said: tuple[str, ...]
    tick: int | None
    requests: tuple[int, ...]
    began: float
    ended: float
    facts: tuple[Fact, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{self.actor} took {self.words}", *(f"  said {each}" for each in self.said)])


def seen(handled: Handled, since: float) -> Seen:
    """What is kept of a message.

    Args:
        since: when the trace began, in seconds of `time.perf_counter`.
    """
    message, said = handled.message, handled.said
    facts = _facts(_TAKEN, message)
    for each in said:
        facts += _facts(_SAID, each)
    return Seen(
        handled.actor,
        type(message).__name__,
        in_words(message),
        tuple(map(in_words, said)),
        message.tick if isinstance(message, _OF_A_TICK) else None,
        _requests(message),
        handled.began - since,
        handled.ended - since,
        facts,
    )


def _requests(message: Message) -> tuple[int, ...]:
    match message:
        case Output() | Admit():
            return (message.request.id,)
        case Text() | Submit() | Cancel() | Withdraw() | Rejected() | Started() | Stopped() | Fetch() | Fetched():
            return (message.request_id,)
        case Plan():
            computed = (chunk.request_id for chunk in message.chunks)
            return (*message.preempted, *computed, *(row.request_id for row in message.rows))
        case Dispatched():
            return tuple(each.request_id for each in message.sampled)
        case Settled():
            return tuple(request_id for request_id, _ in message.tokens)
    return ()


def _facts(tables: "_Facts", message: Message) -> tuple[Fact, ...]:
    known = tables.get(type(message))
    return known(message) if known is not None else ()


def _joined(message: Admit) -> tuple[Joined]:
    request = message.request
    return (Joined(request.id, len(request.prompt), request.hold),)


def _planned(plan: Plan) -> tuple[Planned]:
    rows = tuple(row.request_id for row in plan.rows)
    onloaded = sum(len(each.pages) for each in plan.onloads)
    return (Planned(plan.tick, tuple(map(_part, plan.chunks)), rows, onloaded, plan.preempted),)


def _part(chunk: Chunk) -> Part:
    return Part(chunk.request_id, chunk.start, len(chunk.tokens), chunk.completes is not None)


def _over(message: Output) -> tuple[Over, ...]:
    return () if message.end is None else (Over(message.request.id, message.end, ""),)


def _told(message: Text) -> tuple[Over, ...]:
    return () if message.end is None else (Over(message.request_id, message.end, ""),)


_OF_A_TICK = (Plan, Dispatched, Settled)

_Facts = Mapping[type, Callable[[Any], tuple[Fact, ...]]]

# A message is seen when it is said and again when it is taken; each of its facts is of one of the two.
_TAKEN: _Facts = {
    Admit: _joined,
    Plan: lambda m: (Sent(m.tick),),
    Settled: lambda m: (Given(m.tick, _requests(m)),),
    Stopped: lambda m: (Cut(m.request_id, m.tokens),),
}
_SAID: _Facts = {
    Plan: _planned,
    Settled: lambda m: (Read(m.tick),),
    Started: lambda m: (Begun(m.request_id, m.prompt_tokens, m.cached.total),),
    Output: _over,
    Text: _told,
    Rejected: lambda m: (Over(m.request_id, "rejected", str(m.error)),),
}
