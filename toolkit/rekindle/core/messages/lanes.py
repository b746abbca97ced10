"""What passes between the lanes of an engine and what they share."""

from dataclasses import dataclass

from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True)
class ToLane(Message):
    """The router sends a message to the actor of a lane that takes it."""

    lane: int
    message: Message

    @property
    def requests(self) -> tuple[int, ...]:
        return self.message.requests

    def __str__(self) -> str:
        return f"ToLane: lane {self.lane}, {self.message}"


@dataclass(frozen=True, slots=True)
class FromLane(Message):
    """An actor of a lane says what none of that lane's actors takes."""

    lane: int
    message: Message

    @property
    def requests(self) -> tuple[int, ...]:
        return self.message.requests

    def __str__(self) -> str:
        return f"FromLane: lane {self.lane}, {self.message}"
