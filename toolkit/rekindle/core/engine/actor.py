"""Actors, and the stages of an engine that run them: the only dispatch loop in the package."""

from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Protocol

import anyio

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.messages import Message
from rekindle.core.messages.record import MessageRecord, Observer


class Actor(Protocol):
    """Takes one message and says others. It owns its state, hears of nothing else, and knows no other actor.

    It takes one message at a time, unless it has an attribute `at_once`, which says how many.
    """

    def handle(self, message: Message) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """Take in a message and return the answers; awaitable only where something has to be waited for."""


async def answers(actor: Actor, message: Message) -> tuple[Message, ...]:
    """Return what the actor says to a message, waiting where that is needed."""
    outcome = actor.handle(message)
    said = await outcome if isinstance(outcome, Awaitable) else outcome
    if not isinstance(said, Iterable):
        raise TypeError(f"handle() of {actor!r:.80} must return a list of messages or be a generator, got {said!r:.80}")
    return tuple(said)


class Stage:
    """An actor with its mailbox.

    Args:
        name: the actor's name.
        post: takes each message that the actor says.
        take: told of each message that the actor begins to handle.
        observe: told of each message once it is handled.
        lane: the number of its lane; None where there is one, or if lanes share the actor.

    Attributes:
        name: as given.
        at_once: how many messages the actor takes at a time; as many tasks are to `run` the stage.
        mailbox: of the messages that the actor is to take.
    """

    def __init__(
        self,
        name: str,
        actor: Actor,
        post: Callable[[Message], None],
        take: Callable[[Message], None],
        observe: Observer,
        lane: int | None = None,
    ):
        self._actor, self._post, self._take, self._observe, self._lane = actor, post, take, observe, lane
        self._busy = 0
        self._freed: anyio.Event | None = None
        self.name = name
        self.at_once: int = getattr(actor, "at_once", 1)
        self.mailbox: Mailbox[Message] = Mailbox()

    async def run(self) -> None:
        """Receive messages, handle them, and send the answers on, for ever; nothing is received while paused."""
        while True:
            await self._handle(await self.mailbox.receive())

    async def step(self) -> MessageRecord:
        """Handle the next message, even if the mailbox is paused."""
        message = self.mailbox.take()
        assert message is not None, "a step without a message"
        return await self._handle(message)

    async def idle(self) -> None:
        """Wait until the actor is done with all messages that it took."""
        while self._busy:
            self._freed = anyio.Event()
            await self._freed.wait()

    async def _handle(self, message: Message) -> MessageRecord:
        began = perf_counter()
        self._busy += 1
        self._take(message)
        try:
            said = await answers(self._actor, message)
        except Exception as error:
            error.add_note(f"The actor {self.name!r} raised it at {type(message).__name__}.")
            raise
        self._busy -= 1  # an error leaves it busy: it ends the engine, and nothing more is taken
        if self._freed is not None:
            self._freed.set()
        record = MessageRecord(self.name, message, said, began, perf_counter(), self._lane)
        self._observe(record)
        for answer in said:
            self._send(answer)
        return record

    def _send(self, message: Message) -> None:
        try:
            self._post(message)
        except TypeError as error:  # the actor said what is no message, or what nobody takes
            error.add_note(f"The actor {self.name!r} said it.")
            raise
