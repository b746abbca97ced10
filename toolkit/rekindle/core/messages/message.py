"""Base classes of all messages."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Part = TypeVar("Part")


class Message:
    """Any message. `str` describes it on one line."""

    __slots__ = ()

    @property
    def requests(self) -> tuple[int, ...]:
        """The ids of the message's requests."""
        return ()

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class OfRequest(Message):
    """A message about one request."""

    request_id: int

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request_id,)

    def __str__(self) -> str:
        return f"{type(self).__name__}: request {self.request_id}"


def wrong_receiver(actor: str, message: object) -> TypeError:
    """Return the error for a message without a meaning for an actor."""
    return TypeError(
        f"the {actor} takes no {type(message).__name__}, got {message!r:.80}; "
        "rekindle.core.engine.wiring has the receiver of each message"
    )


@dataclass_transform(frozen_default=True)
def part(cls: type[Part]) -> type[Part]:
    """Make a dataclass for parts of messages, with many instances in a tick.

    Type checkers take the instances as frozen. At run time, frozen ones would take three to nine times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
