"""Sessions attached to a replica, each with a separate range of ids for requests and tickets."""

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
"""Size of each session's range of request ids, and of its range of ticket ids."""
GAP_SECONDS = 3.0
"""Seconds after a later parcel until a missing parcel counts as unreadable."""


@dataclass(slots=True)
class Attachment:
    """A session attached to a replica.

    Attributes:
        number: the number of the session.
        box: the messages for the session.
        last_contact: the time of the last sign of life, by `time.monotonic`.
        requests: the ids, in the engine, of its requests in progress or with held output.
        expected: the number of the next parcel.
        early: the parcels received before their predecessors.
        gap: the time at which a missing parcel was first noticed; None if none is missing.
    """

    number: int
    box: Mailbox[Message] = field(default_factory=Mailbox)
    last_contact: float = field(default_factory=time.monotonic)
    requests: set[int] = field(default_factory=set)
    expected: int = 0
    early: dict[int, Sequence[Message]] = field(default_factory=dict)
    gap: float | None = None

    def in_order(self, number: int, parcel: Sequence[Message]) -> Iterator[Message]:
        """Take a parcel, and yield the messages that are now in order, with the engine's ids.

        Parcels may arrive reordered; a parcel waits in `early` for its predecessors.
        """
        self.last_contact = time.monotonic()
        self.early[number] = parcel
        while self.expected in self.early:
            for message in self.early.pop(self.expected):
                yield shift_ids(message, self.number * SPAN)
            self.expected += 1
        self.gap = (self.gap or self.last_contact) if self.early else None

    def record(self, message: Message) -> None:
        """Record an outgoing request to the engine."""
        if isinstance(message, Submit):
            self.requests.add(message.request_id)

    def deliver(self, message: Message) -> None:
        """Put a message of the engine into the session's box, with the session's ids."""
        match message:
            case RemoteOutputs(outputs):
                self.requests -= {each.request_id for each in outputs if each.end is not None and each.end != "held"}
            case Rejected(request_id, error):
                self.requests.discard(request_id)
                message = Rejected(request_id, _picklable(error))
        self.box.put(shift_ids(message, -self.number * SPAN))


class AttachedSessions:
    """All sessions attached to a replica, by number."""

    def __init__(self) -> None:
        self._numbers = count(secrets.randbits(40))  # random, so numbers of an earlier process do not recur
        self._by_number: dict[int, Attachment] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self) -> Attachment:
        """Attach a new session."""
        number = next(self._numbers)
        attachment = self._by_number[number] = Attachment(number)
        return attachment

    def get(self, number: int) -> Attachment | None:
        """Return the session with a number, or None if it is no longer attached."""
        return self._by_number.get(number)

    def touch(self, number: int) -> None:
        """Record a sign of life of a session."""
        if (attachment := self._by_number.get(number)) is not None:
            attachment.last_contact = time.monotonic()

    def silent(self, seconds: float) -> list[int]:
        """Return the numbers of sessions without a sign of life for `seconds`, or with a lost parcel."""
        now = time.monotonic()
        return [
            number
            for number, each in list(self._by_number.items())
            if each.last_contact < now - seconds or (each.gap is not None and each.gap < now - GAP_SECONDS)
        ]

    def remove(self, number: int) -> Iterator[Message]:
        """Detach a session, and yield messages to cancel its requests."""
        attachment = self._by_number.pop(number, None)
        if attachment is not None:
            yield from map(Cancel, attachment.requests)

    def deliver(self, message: Message) -> None:
        """Deliver a message of the engine to its sessions."""
        if isinstance(message, Outputs):
            by_session: dict[int, list[RemoteOutput]] = {}
            for output in message.outputs:
                by_session.setdefault(output.request.id // SPAN, []).append(RemoteOutput.of(output, output.request.id))
            for number, each in by_session.items():
                self._deliver(number, RemoteOutputs(tuple(each)))
        else:
            self._deliver(_id_of(message) // SPAN, message)

    def broadcast(self, message: Message, but: int | None = None) -> None:
        """Put a message into the box of each session, except the session with the number `but`."""
        for number, attachment in list(self._by_number.items()):
            if number != but:
                attachment.box.put(message)

    def _deliver(self, number: int, message: Message) -> None:
        if (attachment := self._by_number.get(number)) is not None:
            attachment.deliver(message)


def shift_ids(message: Message, offset: int) -> Message:
    """Return a message with all ids of requests and tickets shifted."""
    match message:
        case RemoteOutputs(outputs):
            return RemoteOutputs(tuple(replace(each, request_id=each.request_id + offset) for each in outputs))
        case Submit(request_id, caller=caller):
            return replace(message, request_id=request_id + offset, caller=caller + offset)
        case Cancel() | Stopped() | Started() | Rejected():
            return replace(message, request_id=message.request_id + offset)
        case NewWeights() | KeepWeights() | SaveCache() | WeightsUsed() | WeightsKept() | CacheSaving() | CacheSaved():
            return replace(message, ticket=message.ticket + offset)
    raise TypeError(f"a replica and its sessions do not exchange {message!r:.80}")


def _id_of(message: Message) -> int:
    match message:
        case Started() | Rejected():
            return message.request_id
        case WeightsUsed() | WeightsKept() | CacheSaving() | CacheSaved():
            return message.ticket
    raise TypeError(f"a replica does not send {message!r:.80} to its sessions")


def _picklable(error: Exception) -> Exception:
    """Return an error, or a RekindleError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RekindleError(f"{type(error).__name__}: {error}")
    return error
