"""What an actor is, and the only dispatch loop in the package."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from rekindle.concurrency.mailbox import Mailbox
from rekindle.messages import Message


class Actor(Protocol):
    """Takes one message and says others. It owns its state; it is told nothing else and knows no other actor."""

    def handle(self, message: Message) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """Take in a message; awaitable only where something has to be waited for."""


async def answers(actor: Actor, message: Message) -> tuple[Message, ...]:
    """What the actor says to a message, waiting where it has to."""
    outcome = actor.handle(message)
    said = await outcome if isinstance(outcome, Awaitable) else outcome
    if not isinstance(said, Iterable):
        raise TypeError(f"handle() of {actor!r:.80} must return a list of messages or be a generator, got {said!r:.80}")
    return tuple(said)


async def run(actor: Actor, mailbox: Mailbox[Message], send: Callable[[Message], None]) -> None:
    """Receive, handle, send on, for ever."""
    while True:
        for message in await answers(actor, await mailbox.receive()):
            send(message)
            del message  # or what it holds lives until the next: an error has the frames of its caller, and a session
