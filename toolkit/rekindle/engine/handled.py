"""What an engine did with one message: what is seen of it, in whatever way it is looked at."""

from collections.abc import Callable
from dataclasses import dataclass

from rekindle.engine.message_words import in_words
from rekindle.messages import Message


@dataclass(frozen=True, slots=True, repr=False)
class Handled:
    """A message that an actor took, and what it said to it.

    Attributes:
        actor: the actor's name, as in `Actors`.
        message: what it took.
        said: its answers, in order.
        began, ended: when it took the message and when it had answered, in seconds of `time.perf_counter`.
    """

    actor: str
    message: Message
    said: tuple[Message, ...]
    began: float
    ended: float

    def __repr__(self) -> str:
        lines = [f"{self.actor} took {in_words(self.message)}", *(f"  said {in_words(each)}" for each in self.said)]
        return "\n".join(lines)


class Pending(dict[str, tuple[Message, ...]]):
    """Messages that wait, by the name of the actor that is to take them; shown as a line for each."""

    def __repr__(self) -> str:
        lines = [f"for {actor}: {in_words(message)}" for actor, messages in self.items() for message in messages]
        return "\n".join(lines) or "no message waits"


See = Callable[[Handled], None]
"""Is told of a message on the engine's thread; it must neither block nor change anything."""
