"""The base of all messages."""

from dataclasses import dataclass


class Message:
    """Any message. `str` gives its kind and what it carries on one line."""

    __slots__ = ()

    @property
    def requests(self) -> tuple[int, ...]:
        """The ids of the requests that the message is about."""
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
