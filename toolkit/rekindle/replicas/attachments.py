"""The sessions that are attached to a replica: each has numbers of its own for requests and questions."""

import pickle
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.errors import RekindleError
from rekindle.core.messages import (
    CacheSaved,
    CacheSaving,
    Cancel,
    KeepWeights,
    Message,
    NewWeights,
    Outputs,
    Rejected,
    RemoteOutput,
    RemoteOutputs,
    SaveCache,
    Started,
    Stopped,
    Submit,
    WeightsKept,
    WeightsUsed,
)

SPAN = 1 << 40
"""The numbers that each session has for its requests, and as many for its questions."""


GAP_SECONDS = 3.0
"""A parcel that has not come so long after the next one could not be read here."""


@dataclass(slots=True)
class Attachment:
    """A session that is attached to a replica.

    Attributes:
        number: its own.
        box: what it is to be told.
        heard: when it was last heard of, by `time.monotonic`.
        requests: those that it sent and that have not ended or are held, by their ids in the engine.
        expected: the number of its next parcel.
        early: parcels that came before their turn.
        gap: since when a parcel is missing; None if none is.
    """

    number: int
    box: Mailbox[Message] = field(default_factory=Mailbox)
    heard: float = field(default_factory=time.monotonic)
    requests: set[int] = field(default_factory=set)
    expected: int = 0
    early: dict[int, Sequence[Message]] = field(default_factory=dict)
    gap: float | None = None

    def in_turn(self, number: int, parcel: Sequence[Message]) -> Iterator[Message]:
        """Yield the messages whose turn it is, with the numbers of the engine; parcels may come in another order."""
        self.heard = time.monotonic()
        self.early[number] = parcel
        while self.expected in self.early:
            for message in self.early.pop(self.expected):
                yield numbered(message, self.number * SPAN)
            self.expected += 1
        self.gap = (self.gap or self.heard) if self.early else None

    def sent(self, message: Message) -> None:
        """Take note of what goes to the engine."""
        if isinstance(message, Submit):
            self.requests.add(message.request_id)

    def tell(self, message: Message) -> None:
        """Pass on what the engine says, with the numbers of the session."""
        match message:
            case RemoteOutputs(outputs):
                self.requests -= {each.request_id for each in outputs if each.end is not None and each.end != "held"}
            case Rejected(request_id, error):
                self.requests.discard(request_id)
                message = Rejected(request_id, _sendable(error))
        self.box.put(numbered(message, -self.number * SPAN))


class Attachments:
    """All sessions that are attached to a replica, by their numbers."""

    def __init__(self) -> None:
        self._numbers = count(secrets.randbits(40))  # none is that of a session of an earlier process
        self._attached: dict[int, Attachment] = {}

    def __len__(self) -> int:
        return len(self._attached)

    def add(self) -> Attachment:
        """Return a new session."""
        number = next(self._numbers)
        attachment = self._attached[number] = Attachment(number)
        return attachment

    def get(self, number: int) -> Attachment | None:
        """Return a session; None if it is attached no more."""
        return self._attached.get(number)

    def hear(self, number: int) -> None:
        """Take note that a session is there."""
        if (attachment := self._attached.get(number)) is not None:
            attachment.heard = time.monotonic()

    def silent(self, seconds: float) -> list[int]:
        """Return the sessions that have not been heard of for so long, or of which a parcel is lost."""
        now = time.monotonic()
        return [
            number
            for number, each in list(self._attached.items())
            if each.heard < now - seconds or (each.gap is not None and each.gap < now - GAP_SECONDS)
        ]

    def remove(self, number: int) -> Iterator[Message]:
        """Forget a session, and yield what ends its requests."""
        attachment = self._attached.pop(number, None)
        if attachment is not None:
            yield from map(Cancel, attachment.requests)

    def tell(self, message: Message) -> None:
        """Pass what the engine says on to the sessions that it is for."""
        if isinstance(message, Outputs):
            told: dict[int, list[RemoteOutput]] = {}
            for output in message.outputs:
                told.setdefault(output.request.id // SPAN, []).append(RemoteOutput.of(output, output.request.id))
            for number, each in told.items():
                self._tell(number, RemoteOutputs(tuple(each)))
        else:
            self._tell(_number(message) // SPAN, message)

    def tell_all(self, message: Message) -> None:
        """Put a message into the box of each session."""
        for attachment in list(self._attached.values()):
            attachment.box.put(message)

    def _tell(self, number: int, message: Message) -> None:
        if (attachment := self._attached.get(number)) is not None:
            attachment.tell(message)


def numbered(message: Message, by: int) -> Message:
    """Return a message with all numbers of requests and questions shifted."""
    match message:
        case RemoteOutputs(outputs):
            return RemoteOutputs(tuple(replace(each, request_id=each.request_id + by) for each in outputs))
        case Submit(request_id, caller=caller):
            return replace(message, request_id=request_id + by, caller=caller + by)
        case Cancel() | Stopped() | Started() | Rejected():
            return replace(message, request_id=message.request_id + by)
        case NewWeights() | KeepWeights() | SaveCache() | WeightsUsed() | WeightsKept() | CacheSaving() | CacheSaved():
            return replace(message, ticket=message.ticket + by)
    raise TypeError(f"a replica and its sessions do not say {message!r:.80}")


def _number(message: Message) -> int:
    match message:
        case Started() | Rejected():
            return message.request_id
        case WeightsUsed() | WeightsKept() | CacheSaving() | CacheSaved():
            return message.ticket
    raise TypeError(f"a replica does not tell its sessions {message!r:.80}")


def _sendable(error: Exception) -> Exception:
    """Return an error as another process can have it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RekindleError(f"{type(error).__name__}: {error}")
    return error
