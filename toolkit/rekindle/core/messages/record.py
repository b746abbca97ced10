"""Records of handled messages, and the contents of mailboxes, as shown to users."""

from collections.abc import Callable
from dataclasses import dataclass

from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True, repr=False)
class MessageRecord:
    """A message handled by an actor, with its answers.

    Attributes:
        actor: the actor's name, as in `Actors`.
        message: the handled message.
        answers: the answers, in order.
        began, ended: the start and the end of handling, in seconds of `time.perf_counter`.
        lane: the number of the actor's lane; None with a single lane, and for actors shared by lanes.
    """

    actor: str
    message: Message
    answers: tuple[Message, ...]
    began: float
    ended: float
    lane: int | None = None

    def __repr__(self) -> str:
        actor = self.actor if self.lane is None else f"lane {self.lane} {self.actor}"
        return "\n".join([f"{actor} handled {self.message}", *(f"  answered {each}" for each in self.answers)])


class Pending(dict[str, tuple[Message, ...]]):
    """Queued messages, by the receiving actor's name. `repr` has a line for each."""

    def __repr__(self) -> str:
        lines = [f"for {actor}: {message}" for actor, messages in self.items() for message in messages]
        return "\n".join(lines) or "no message waits"


Observer = Callable[[MessageRecord], None]
"""A function called with each record on the engine thread; it must neither block nor change anything."""
