"""The engine: seven actors wired by message type, on one event loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import anyio

from rekindle.actor import Actor, Mailbox, run
from rekindle.messages import (
    Admit,
    CacheSaved,
    Cancel,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    KeepWeights,
    Message,
    NewWeights,
    Output,
    Persist,
    Plan,
    Rejected,
    Save,
    SaveCache,
    Saved,
    Settled,
    Started,
    Stopped,
    Submit,
    Text,
    UseWeights,
    WeightsUsed,
    Withdraw,
    Write,
    Written,
)

Deliver = Callable[[Message], None]


@dataclass(frozen=True)
class Actors:
    """The stages of a request's way; any of them may be replaced by another that takes the same messages."""

    intake: Actor
    scheduler: Actor
    stepper: Actor
    settler: Actor
    detokenizer: Actor
    host_tier: Actor
    disk_tier: Actor

    def by_message(self) -> Mapping[type, Actor]:
        """Who takes which message."""
        return {
            Submit: self.intake,
            Cancel: self.intake,
            Admit: self.scheduler,
            Withdraw: self.scheduler,
            Stopped: self.scheduler,
            NewWeights: self.scheduler,
            KeepWeights: self.scheduler,
            Settled: self.scheduler,
            Saved: self.scheduler,
            Fetched: self.scheduler,
            Written: self.scheduler,
            SaveCache: self.scheduler,
            Plan: self.stepper,
            Save: self.stepper,
            UseWeights: self.stepper,
            Dispatched: self.settler,
            Output: self.detokenizer,
            Gathered: self.host_tier,
            Fetch: self.host_tier,
            Drop: self.host_tier,
            Persist: self.host_tier,
            Write: self.disk_tier,
        }


TO_CALLER = (Rejected, Started, Text, WeightsUsed, CacheSaved)
"""Messages that leave the engine."""


class Engine:
    """Runs the actors, each in a task of its own with a mailbox of its own.

    Args:
        actors: the stages.
        deliver: takes the messages for callers, on the engine's loop; it must not block.
    """

    def __init__(self, actors: Actors, deliver: Deliver):
        routes = actors.by_message()
        self._mailboxes: dict[Actor, Mailbox[Message]] = {actor: Mailbox() for actor in routes.values()}
        self._routes: dict[type, Deliver] = {kind: self._mailboxes[actor].put for kind, actor in routes.items()}
        self._routes.update((kind, deliver) for kind in TO_CALLER)

    def post(self, message: Message) -> None:
        """Send a message to whoever takes it. Any thread may call this; it never blocks."""
        self._routes[type(message)](message)

    async def run(self) -> None:
        """Serve until cancelled. An error in any actor ends the engine and comes out of here."""
        async with anyio.create_task_group() as tasks:
            for actor, mailbox in self._mailboxes.items():
                tasks.start_soon(partial(run, actor, mailbox, self.post))
