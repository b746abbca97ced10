"""Messages between the lanes of an engine and their shared actors."""

from dataclasses import dataclass

from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True)
class _OfLane(Message):
    """A message to or from an actor of a lane."""

    lane: int
    message: Message

    @property
    def requests(self) -> tuple[int, ...]:
        return self.message.requests

    def __str__(self) -> str:
        return f"{type(self).__name__}: lane {self.lane}, {self.message}"


class ToLane(_OfLane):
    """A message for an actor of a lane, from the router or from the connection to a replica."""

    __slots__ = ()


class FromLane(_OfLane):
    """A message for the router, from an actor of a lane; most go on to shared actors or callers."""

    __slots__ = ()
