"""The engine: nine actors wired by message type, on one event loop."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio

from rekindle.core.engine.actor import Actor, Stage
from rekindle.core.engine.conductor import Conductor
from rekindle.core.engine.watchdog import Watchdog
from rekindle.core.errors import ConfigError
from rekindle.core.messages import (
    Admit,
    Advance,
    Advanced,
    Archive,
    CacheSaved,
    CacheSaving,
    Cancel,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    KeepWeights,
    Message,
    NewWeights,
    Offload,
    Offloaded,
    Outputs,
    Overdue,
    Plan,
    Rejected,
    SaveCache,
    Settled,
    Started,
    Stopped,
    Submit,
    Texts,
    Tokenize,
    Tokenized,
    UseWeights,
    WeightsUsed,
    Withdraw,
    Write,
    Written,
)
from rekindle.core.messages.handled import Handled, Pending, See

Deliver = Callable[[Message], None]


@dataclass(frozen=True)
class Actors:
    """The actors of an engine; each may be replaced by another that takes the same messages.

    Wrap the scheduler rather than replace it: `session.stats` and `session.cache` show the original, and what is
    restored is in it.
    """

    intake: Actor
    tokenizer: Actor
    scheduler: Actor
    stepper: Actor
    settler: Actor
    detokenizer: Actor
    grammars: Actor
    host_tier: Actor
    disk_tier: Actor

    def by_message(self) -> Mapping[type[Message], Actor]:
        """Return the actor that takes each kind of message; those of `TO_CALLER` leave the engine."""
        takers = (
            (self.intake, (Submit, Cancel, Tokenized)),
            (self.tokenizer, (Tokenize,)),
            (self.scheduler, (Admit, Withdraw, Settled, Stopped, Advanced, Overdue)),
            (self.scheduler, (Offloaded, Fetched, Written, SaveCache, NewWeights, KeepWeights)),
            (self.stepper, (Plan, Offload, UseWeights)),
            (self.settler, (Dispatched,)),
            (self.detokenizer, (Outputs,)),
            (self.grammars, (Advance,)),
            (self.host_tier, (Gathered, Fetch, Drop, Archive)),
            (self.disk_tier, (Write,)),
        )
        return {kind: actor for actor, kinds in takers for kind in kinds}


TO_CALLER = (Rejected, Started, Texts, WeightsUsed, CacheSaving, CacheSaved)
"""Messages that leave the engine."""

Compose = Callable[[Actors], Actors]
"""A function from the actors of an engine, before they run, to those that shall run instead."""


def composed(actors: Actors, compose: Compose | None) -> Actors:
    """Return the actors as `compose` wants them.

    Raises:
        ConfigError: `compose` returned something else.
    """
    if compose is None:
        return actors
    made: object = compose(actors)
    if not isinstance(made, Actors):
        raise ConfigError(
            f"compose must return Actors, such as dataclasses.replace(actors, settler=...); got {made!r:.80}"
        )
    for name, actor in vars(made).items():
        if not callable(getattr(actor, "handle", None)):
            raise ConfigError(f"compose must give an actor with a handle() for {name}; got {actor!r:.80}")
    return made


class Engine:
    """Runs the actors, each with a mailbox of its own, in as many tasks as it takes messages at once.

    Args:
        actors: as they shall run.
        deliver: takes the messages for callers, on the engine's loop; it must not block.
        timeout: seconds that a tick may take, see `Watchdog`.
        wait_ended: see `Watchdog`.

    Attributes:
        conductor: pauses the engine. Whoever ran the engine closes it, once it is known why the engine ended.
        watchdog: times the ticks.
    """

    def __init__(
        self,
        actors: Actors,
        deliver: Deliver,
        timeout: float = math.inf,
        wait_ended: Callable[[], float] = lambda: -math.inf,
    ):
        self.watchdog = Watchdog(timeout, self.post, wait_ended)
        take, see = self.watchdog.begin, self._tell
        # By id, since a user's actor need not be hashable, and two that are equal are still two.
        stages = {id(actor): Stage(name, actor, self.post, take, see) for name, actor in vars(actors).items()}
        self._stages = {name: stages[id(actor)] for name, actor in vars(actors).items()}
        self._routes: dict[type[Message], Deliver] = dict.fromkeys(TO_CALLER, deliver)
        self._routes |= {kind: stages[id(actor)].mailbox.put for kind, actor in actors.by_message().items()}
        self._watchers: dict[See, None] = {}  # ordered, and changed in one step by any thread
        self.conductor = Conductor(tuple(stages.values()))

    @property
    def pending(self) -> Pending:
        """The messages that wait, by the name of the actor that is to take them. Any thread may ask."""
        return Pending((name, stage.mailbox.items) for name, stage in self._stages.items())

    def post(self, message: Message) -> None:
        """Send a message to its actor or to callers. Any thread may call this; it never blocks.

        Raises:
            TypeError: nobody takes such a message.
        """
        route = self._routes.get(type(message))
        if route is None:
            raise TypeError(f"an actor must say messages of rekindle.core.messages, and nobody takes {message!r:.80}")
        route(message)

    def watch(self, see: See) -> None:
        """Tell `see` of every message from now on. Any thread may call this."""
        self._watchers[see] = None

    def unwatch(self, see: See) -> None:
        """Tell `see` no more. Any thread may call this."""
        self._watchers.pop(see, None)

    async def run(self) -> None:
        """Serve until cancelled. An error in any actor ends the engine and is raised here."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.conductor.run)
                for stage in dict.fromkeys(self._stages.values()):
                    for _ in range(stage.at_once):
                        tasks.start_soon(stage.run, name=stage.name)
        finally:
            self.watchdog.stop()

    def _tell(self, handled: Handled) -> None:
        self.watchdog.end(handled.message)
        for see in tuple(self._watchers):
            see(handled)
