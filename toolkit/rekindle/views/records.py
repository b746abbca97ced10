"""The records of a trace: of each message words and small facts, and nothing that the message carries."""

from typing import NamedTuple

from rekindle.core.messages import (
    Admit,
    Chunk,
    Dispatched,
    FromLane,
    Message,
    Outputs,
    Overdue,
    Plan,
    Rejected,
    Settled,
    Started,
    Stopped,
    Texts,
    ToLane,
)
from rekindle.core.messages.record import MessageRecord


class JoinRecord(NamedTuple):
    """A request joined the waiting queue."""

    request: int
    prompt: int
    hold: bool


class StartRecord(NamedTuple):
    """A request left the waiting queue for the first time; `cached` tokens of its prompt were found."""

    request: int
    prompt: int
    cached: int


class ChunkRecord(NamedTuple):
    """A chunk of a plan, and which group of devices computes it."""

    request: int
    start: int
    tokens: int
    samples: bool
    group: int = 0


class Planned(NamedTuple):
    """A plan was made: its chunks, the requests of its decode rows, once for each token that a row may get, the pages
    that are copied in for it, and who lost theirs.
    """

    tick: int
    chunks: tuple[ChunkRecord, ...]
    rows: tuple[int, ...]
    onloaded: int
    preempted: tuple[int, ...]


class Sent(NamedTuple):
    """A plan was given to the device."""

    tick: int


class Read(NamedTuple):
    """The outputs of a tick were read back."""

    tick: int


class Given(NamedTuple):
    """The scheduler took in the results of a tick: a token for each of these requests, some of them repeatedly."""

    tick: int
    requests: tuple[int, ...]


class Cut(NamedTuple):
    """A stop string was found in the text of a request, which therefore ends after this many tokens."""

    request: int
    tokens: int


class Over(NamedTuple):
    """A request ended: `how` is an end reason or "rejected"; `why` is the error of a rejected one."""

    request: int
    how: str
    why: str


Fact = JoinRecord | StartRecord | Planned | Sent | Read | Given | Cut | Over
"""Any fact; timelines are made of them."""


class TraceRecord(NamedTuple):
    """The record of one message that an actor took.

    Attributes:
        actor: its name.
        kind: the message's type, by name.
        words: the message as a string.
        said: its answers as strings, in order.
        tick: the tick that the message is about, if any.
        requests: the ids of the requests that it is about.
        began, ended: when the actor took it and when it had answered, in seconds since the trace began.
        facts: of the message and its answers, in order.
        lane: the number of the actor's lane; None where there is one, or if lanes share the actor.
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
    lane: int | None = None

    @property
    def place(self) -> str:
        """The actor's name, with its lane where there are several."""
        return self.actor if self.lane is None else f"lane {self.lane} {self.actor}"

    def __repr__(self) -> str:
        return "\n".join([f"{self.place} took {self.words}", *(f"  said {each}" for each in self.said)])


def trace_record(record: MessageRecord, since: float) -> TraceRecord:
    """Return the record of a message.

    A message is seen when it is said and again when it is taken; each of its facts is of one of the two.

    Args:
        since: when the trace began, in seconds of `time.perf_counter`.
    """
    message, said = record.message, record.answers
    facts: tuple[Fact, ...] = ()
    if not any(isinstance(each, FromLane | ToLane) for each in (message, *said)):  # a router passes on what lanes tell
        facts = sum(map(_facts_said, said), _facts_taken(message))
    return TraceRecord(
        record.actor,
        type(message).__name__,
        str(message),
        tuple(map(str, said)),
        message.tick if isinstance(message, (Plan, Dispatched, Settled, Overdue)) else None,
        message.requests,
        record.began - since,
        record.ended - since,
        facts,
        record.lane,
    )


def _facts_taken(message: Message) -> tuple[Fact, ...]:
    match message:
        case Admit(request):
            return (JoinRecord(request.id, len(request.prompt), request.hold),)
        case Plan(tick):
            return (Sent(tick),)
        case Settled(tick):
            return (Given(tick, message.requests),)
        case Stopped(request_id, tokens):
            return (Cut(request_id, tokens),)
    return ()


def _facts_said(message: Message) -> tuple[Fact, ...]:
    match message:
        case Outputs(outputs):
            return tuple(Over(output.request.id, output.end, "") for output in outputs if output.end is not None)
        case Texts(texts):
            return tuple(Over(text.request_id, text.end, "") for text in texts if text.end is not None)
        case Plan():
            return (_planned(message),)
        case Settled(tick):
            return (Read(tick),)
        case Started(request_id, prompt, cached=cached):
            return (StartRecord(request_id, len(prompt), cached.total),)
        case Rejected(request_id, error):
            return (Over(request_id, "rejected", str(error)),)
    return ()


def _planned(plan: Plan) -> Planned:
    chunks = tuple(map(_part, plan.chunks))
    rows = tuple(row.request_id for row in plan.rows for _ in range(row.steps))
    return Planned(plan.tick, chunks, rows, sum(len(each.pages) for each in plan.onloads), plan.preempted)


def _part(chunk: Chunk) -> ChunkRecord:
    return ChunkRecord(chunk.request_id, chunk.start, len(chunk.tokens), chunk.completes is not None, chunk.group)
