"""Base classes of all messages."""

from dataclasses import dataclass


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
