"""The engine: seven actors wired by message type, on one event loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio

from rekindle.engine.actor import Actor, Stage
from rekindle.engine.conductor import Conductor
from rekindle.engine.handled import Handled, Pending, See
from rekindle.errors import ConfigError
from rekindle.messages import (
    Admit,
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
    Output,
    Plan,
    Rejected,
    SaveCache,
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
    """The stages of a request's way; any of them may be replaced by another that takes the same messages.

    Wrap the scheduler rather than replace it: `session.stats`, `session.cache` and what is restored are those of the
    one that was made.
    """

    intake: Actor
    scheduler: Actor
    stepper: Actor
    settler: Actor
    detokenizer: Actor
    host_tier: Actor
    disk_tier: Actor

    def by_message(self) -> Mapping[type[Message], Actor]:
        """Return the actor that takes each kind of message; those of `TO_CALLER` leave the engine."""
        takers = (
            (self.intake, (Submit, Cancel)),
            (self.scheduler, (Admit, Withdraw, Settled, Stopped)),
            (self.scheduler, (Offloaded, Fetched, Written, SaveCache, NewWeights, KeepWeights)),
            (self.stepper, (Plan, Offload, UseWeights)),
            (self.settler, (Dispatched,)),
            (self.detokenizer, (Output,)),
            (self.host_tier, (Gathered, Fetch, Drop, Archive)),
            (self.disk_tier, (Write,)),
        )
        return {kind: actor for actor, kinds in takers for kind in kinds}


TO_CALLER = (Rejected, Started, Text, WeightsUsed, CacheSaving, CacheSaved)
"""Messages that leave the engine."""

Compose = Callable[[Actors], Actors]
"""Gets the actors of an engine before they run, and returns those that are to run, some of them perhaps one's own."""


def composed(actors: Actors, compose: Compose | None) -> Actors:
    """The actors as `compose` wants them.

    Raises:
        ConfigError: it returned something else.
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
    """Runs the actors, each in a task of its own with a mailbox of its own.

    Args:
        actors: the stages.
        deliver: takes the messages for callers, on the engine's loop; it must not block.

    Attributes:
        conductor: pauses it; to be closed by who ran the engine, once it is known why that ended.
    """

    def __init__(self, actors: Actors, deliver: Deliver):
        # By id: an actor of one's own need not be hashable, and two that are equal are two.
        stages = {id(actor): Stage(name, actor, self.post, self._tell) for name, actor in vars(actors).items()}
        self._stages = {name: stages[id(actor)] for name, actor in vars(actors).items()}
        self._routes: dict[type[Message], Deliver] = dict.fromkeys(TO_CALLER, deliver)
        self._routes |= {kind: stages[id(actor)].mailbox.put for kind, actor in actors.by_message().items()}
        self._watchers: dict[See, None] = {}  # in order; each change of it is one step, whatever the thread
        self.conductor = Conductor(tuple(stages.values()))

    @property
    def pending(self) -> Pending:
        """The messages that wait to be taken, by the name of the actor that is to take them. Any thread may ask."""
        return Pending((name, stage.mailbox.items) for name, stage in self._stages.items())

    def post(self, message: Message) -> None:
        """Send a message to whoever takes it. Any thread may call this; it never blocks."""
        route = self._routes.get(type(message))
        if route is None:
            raise TypeError(f"actors say messages of rekindle.messages; nobody takes {message!r:.80}")
        route(message)

    def watch(self, see: See) -> None:
        """Have `see` told of every message from now on. Any thread may call this."""
        self._watchers[see] = None

    def unwatch(self, see: See) -> None:
        """Tell it no more."""
        self._watchers.pop(see, None)

    async def run(self) -> None:
        """Serve until cancelled. An error in any actor ends the engine and comes out of here."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.conductor.run)
            for stage in dict.fromkeys(self._stages.values()):
                tasks.start_soon(stage.run)

    def _tell(self, handled: Handled) -> None:
        for see in tuple(self._watchers):
            see(handled)
