"""Trace records: the text of each message, and small facts about it, without references to its payload."""

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
    """A request left the waiting queue for the first time, with `cached` tokens of its prompt in the prefix cache."""

    request: int
    prompt: int
    cached: int


class ChunkRecord(NamedTuple):
    """A prefill chunk of a plan, and its group of devices; `samples` is True if it samples a token."""

    request: int
    start: int
    tokens: int
    samples: bool
    group: int = 0


class PlanRecord(NamedTuple):
    """The scheduler made a plan.

    Attributes:
        tick: the tick of the plan.
        chunks: the chunks of prefill.
        rows: the requests of the decode rows; a request is repeated for each token of its row.
        onloaded_pages: the number of pages to copy to the device.
        preempted: the requests preempted for this plan.
        drafted: the requests of rows with drafted tokens; a request is repeated for each of them.
    """

    tick: int
    chunks: tuple[ChunkRecord, ...]
    rows: tuple[int, ...]
    onloaded_pages: int
    preempted: tuple[int, ...]
    drafted: tuple[int, ...] = ()


class DispatchRecord(NamedTuple):
    """The stepper dispatched a plan to the device."""

    tick: int


class ReadbackRecord(NamedTuple):
    """The settler read back the outputs of a tick."""

    tick: int


class TokensRecord(NamedTuple):
    """The scheduler received the results of a tick; a request is repeated in `requests` for each of its tokens."""

    tick: int
    requests: tuple[int, ...]


class StopRecord(NamedTuple):
    """A stop string ended a request after `tokens` tokens."""

    request: int
    tokens: int


class EndRecord(NamedTuple):
    """A request ended. `end_reason` may also be "rejected"; `error` is then the text of the error, otherwise empty."""

    request: int
    end_reason: str
    error: str


Fact = JoinRecord | StartRecord | PlanRecord | DispatchRecord | ReadbackRecord | TokensRecord | StopRecord | EndRecord
"""Any fact of a trace. Timelines are built from facts."""


class TraceRecord(NamedTuple):
    """The record of one message handled by an actor.

    Attributes:
        actor: the name of the actor.
        kind: the name of the message's type.
        words: the message as a string.
        answers: the answers of the actor as strings, in order.
        tick: the tick of the message; None without one.
        requests: the ids of the message's requests.
        began, ended: the start and the end of the handling, in seconds since the trace began.
        facts: the facts of the message and of its answers, in order.
        lane: the number of the actor's lane; None with a single lane, or for an actor shared by lanes.
    """

    actor: str
    kind: str
    words: str
    answers: tuple[str, ...]
    tick: int | None
    requests: tuple[int, ...]
    began: float
    ended: float
    facts: tuple[Fact, ...]
    lane: int | None = None

    @property
    def place(self) -> str:
        """The name of the actor, with its lane if there are several."""
        return self.actor if self.lane is None else f"lane {self.lane} {self.actor}"

    def __repr__(self) -> str:
        return "\n".join([f"{self.place} handled {self.words}", *(f"  answered {each}" for each in self.answers)])


def trace_record(record: MessageRecord, since: float) -> TraceRecord:
    """Return the trace record of a message record.

    A message occurs twice in a trace: as an answer of its sender and as the message of its receiver. Each fact is
    recorded at one of the two.

    Args:
        since: the start of the trace, in seconds of `time.perf_counter`.
    """
    message, answers = record.message, record.answers
    facts: tuple[Fact, ...] = ()
    # A router only forwards the messages of lanes.
    if not any(isinstance(each, FromLane | ToLane) for each in (message, *answers)):
        facts = sum(map(_facts_of_answer, answers), _facts_of_message(message))
    return TraceRecord(
        record.actor,
        type(message).__name__,
        str(message),
        tuple(map(str, answers)),
        message.tick if isinstance(message, (Plan, Dispatched, Settled, Overdue)) else None,
        message.requests,
        record.began - since,
        record.ended - since,
        facts,
        record.lane,
    )


def _facts_of_message(message: Message) -> tuple[Fact, ...]:
    match message:
        case Admit(request):
            return (JoinRecord(request.id, len(request.prompt), request.hold),)
        case Plan(tick):
            return (DispatchRecord(tick),)
        case Settled(tick):
            return (TokensRecord(tick, message.requests),)
        case Stopped(request_id, tokens):
            return (StopRecord(request_id, tokens),)
    return ()


def _facts_of_answer(message: Message) -> tuple[Fact, ...]:
    match message:
        case Outputs(outputs):
            return tuple(EndRecord(output.request.id, output.end, "") for output in outputs if output.end is not None)
        case Texts(texts):
            return tuple(EndRecord(text.request_id, text.end, "") for text in texts if text.end is not None)
        case Plan():
            return (_plan_record(message),)
        case Settled(tick):
            return (ReadbackRecord(tick),)
        case Started(request_id, prompt, cached=cached):
            return (StartRecord(request_id, len(prompt), cached.total),)
        case Rejected(request_id, error):
            return (EndRecord(request_id, "rejected", str(error)),)
    return ()


def _plan_record(plan: Plan) -> PlanRecord:
    chunks = tuple(map(_chunk_record, plan.chunks))
    rows = tuple(row.request_id for row in plan.rows for _ in range(row.steps))
    onloaded = sum(len(each.pages) for each in plan.onloads)
    drafted = tuple(row.request_id for row in plan.rows if row.offset)
    return PlanRecord(plan.tick, chunks, rows, onloaded, plan.preempted, drafted)


def _chunk_record(chunk: Chunk) -> ChunkRecord:
    return ChunkRecord(chunk.request_id, chunk.start, len(chunk.tokens), chunk.completes is not None, chunk.group)
