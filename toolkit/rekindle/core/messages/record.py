"""The messages of an engine as people see them: records of handled ones, and those in mailboxes."""

from collections.abc import Callable
from dataclasses import dataclass
from warnings import warn

from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True, repr=False)
class MessageRecord:
    """A message that an actor handled, with its answers.

    Attributes:
        actor: the actor's name, as in `Actors`.
        message: the message that it took.
        answers: its answers, in order.
        began, ended: when it took the message and when it had answered, in seconds of `time.perf_counter`.
        lane: the number of the actor's lane; None where there is one, or if lanes share the actor.
    """

    actor: str
    message: Message
    answers: tuple[Message, ...]
    began: float
    ended: float
    lane: int | None = None

    def __repr__(self) -> str:
        actor = self.actor if self.lane is None else f"lane {self.lane} {self.actor}"
        return "\n".join([f"{actor} took {self.message}", *(f"  said {each}" for each in self.answers)])

    @property
    def said(self) -> tuple[Message, ...]:
        """The answers, by their former name."""
        warn("MessageRecord.said is now MessageRecord.answers", DeprecationWarning, stacklevel=2)
        return self.answers


class Pending(dict[str, tuple[Message, ...]]):
    """Messages that wait, by the name of the actor that is to take them. `repr` has a line for each."""

    def __repr__(self) -> str:
        lines = [f"for {actor}: {message}" for actor, messages in self.items() for message in messages]
        return "\n".join(lines) or "no message waits"


Observer = Callable[[MessageRecord], None]
"""A function that is told of each message on the engine's thread; it must neither block nor change anything."""
