"""Actors and their stages: the only dispatch loop in the package."""

from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Protocol

import anyio

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.messages import Message
from rekindle.core.messages.record import MessageRecord, Observer


class Actor(Protocol):
    """A component that takes messages and answers with others. It owns its state and knows no other actor.

    It handles one message at a time, unless its attribute `at_once` allows more.
    """

    def handle(self, message: Message) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """Handle a message and return the answers, or an awaitable if the actor has to wait."""


async def answers(actor: Actor, message: Message) -> tuple[Message, ...]:
    """Return an actor's answers to a message, awaited if necessary."""
    outcome = actor.handle(message)
    messages = await outcome if isinstance(outcome, Awaitable) else outcome
    if not isinstance(messages, Iterable):
        raise TypeError(
            f"handle() of {actor!r:.80} must return a list of messages or be a generator, got {messages!r:.80}"
        )
    return tuple(messages)


class Stage:
    """An actor of a running engine, with its mailbox. The `Engine` creates and runs the stages.

    Args:
        name: name of the actor.
        post: sends each message from the actor.
        take: called with each message before the actor handles it.
        observe: called with the record of each handled message.
        lane: number of the actor's lane; None for a single lane, or an actor shared by lanes.

    Attributes:
        name: name of the actor.
        at_once: number of messages handled at a time, each in a task calling `run`.
        mailbox: queue of messages to the actor.
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
        """Receive messages, handle them and send the answers until cancelled; receive nothing while paused."""
        while True:
            await self._handle(await self.mailbox.receive())

    async def step(self) -> MessageRecord:
        """Handle the next message, even if the mailbox is paused."""
        message = self.mailbox.take()
        assert message is not None, "a step without a message"
        return await self._handle(message)

    @property
    def busy(self) -> bool:
        """True while the actor handles a message. Thread-safe."""
        return self._busy > 0

    async def idle(self) -> None:
        """Wait until the actor has handled all messages taken so far."""
        while self._busy:
            self._freed = anyio.Event()
            await self._freed.wait()

    async def _handle(self, message: Message) -> MessageRecord:
        began = perf_counter()
        self._busy += 1
        self._take(message)
        try:
            messages = await answers(self._actor, message)
        except Exception as error:
            error.add_note(f"The actor {self.name!r} raised it at {type(message).__name__}.")
            raise
        self._busy -= 1  # not after an error, which ends the engine
        if self._freed is not None:
            self._freed.set()
        record = MessageRecord(self.name, message, messages, began, perf_counter(), self._lane)
        self._observe(record)
        for answer in messages:
            self._send(answer)
        return record

    def _send(self, message: Message) -> None:
        try:
            self._post(message)
        except TypeError as error:  # the actor sent something other than a message, or a message that no actor takes
            error.add_note(f"The actor {self.name!r} sent it.")
            raise
