"""The engine: actors wired by message type, on one event loop."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import anyio

from rekindle.core.engine.actor import Actor, Stage
from rekindle.core.engine.conductor import Conductor
from rekindle.core.engine.watchdog import Watchdog
from rekindle.core.engine.wiring import PER_LANE, ROUTER, SHARED, Actors, Deliver, Wiring, full_name
from rekindle.core.errors import StepTimeout
from rekindle.core.messages import Message
from rekindle.core.messages.record import MessageRecord, Observer, Pending


class Engine:
    """The actors of all lanes on one event loop, each with a mailbox and as many tasks as messages handled at once.

    `LoadedEngine.engine` creates it. The `EngineThread` runs it, and posts messages from callers to it.

    Args:
        lanes: final actors of each lane. All lanes have the same intake, tokenizer and detokenizer.
        deliver: function for messages to callers; called on the engine's loop, must not block.
        router: actor that assigns requests to lanes; None for a single lane.
        timeout: largest time of a tick in seconds, see `Watchdog`.
        wait_ended: function from a lane number to the `wait_ended` of its `Watchdog`.

    Attributes:
        conductor: pauses and steps the engine. The `EngineThread` closes it once the reason for the end is known.
    """

    def __init__(
        self,
        lanes: Sequence[Actors],
        deliver: Deliver,
        router: Actor | None = None,
        timeout: float = math.inf,
        wait_ended: Callable[[int], float] = lambda lane: -math.inf,
    ):
        self._watchdogs = [
            Watchdog(timeout, partial(self._send, lane), partial(wait_ended, lane)) for lane in range(len(lanes))
        ]
        self._stages = dict(self._create_stages(lanes, router))
        self._watchers: dict[Observer, None] = {}  # ordered, and changed in one step by any thread
        self.conductor = Conductor(tuple(dict.fromkeys(self._stages.values())))
        self._wiring = Wiring({name: stage.mailbox.put for name, stage in self._stages.items()}, len(lanes), deliver)

    @property
    def stuck(self) -> str | None:
        """The stuck tick and its duration, as text; None if no tick is stuck. Thread-safe."""
        for lane, watchdog in enumerate(self._watchdogs):
            if (stuck := watchdog.stuck) is not None:
                return f"lane {lane} {stuck}" if len(self._watchdogs) > 1 else stuck
        return None

    @property
    def overdue(self) -> StepTimeout | None:
        """The error of the requests in a stuck tick; None if no tick is stuck. Thread-safe."""
        return next((watchdog.error for watchdog in self._watchdogs if watchdog.error is not None), None)

    @property
    def pending(self) -> Pending:
        """Queued messages by the name of the receiving actor. Thread-safe."""
        return Pending((name, stage.mailbox.items) for name, stage in self._stages.items())

    def is_busy(self) -> bool:
        """Return True while messages are queued or handled. Thread-safe."""
        return any(stage.busy or stage.mailbox for stage in self._stages.values())

    def post(self, message: Message) -> None:
        """Send a message to its actor or to callers. Thread-safe; never blocks.

        Raises:
            TypeError: no actor takes messages of this type.
        """
        self._wiring.post(message, None)

    def watch(self, observe: Observer) -> None:
        """Call `observe` with every message from now on. Thread-safe."""
        self._watchers[observe] = None

    def unwatch(self, observe: Observer) -> None:
        """Stop calling `observe`. Thread-safe."""
        self._watchers.pop(observe, None)

    async def run(self) -> None:
        """Serve until cancelled. An error in an actor ends the engine and is raised here."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.conductor.run)
                for stage in dict.fromkeys(self._stages.values()):
                    for _ in range(stage.at_once):
                        tasks.start_soon(stage.run, name=stage.name)
        finally:
            for watchdog in self._watchdogs:
                watchdog.stop()

    def _create_stages(self, lanes: Sequence[Actors], router: Actor | None) -> Iterator[tuple[str, Stage]]:
        """Yield the name and stage of each actor; an actor with several names has one stage."""
        stages: dict[tuple[int | None, int], Stage] = {}  # by id, since a user's actor need not be hashable

        def stage(name: str, actor: Actor, lane: int | None = None) -> tuple[str, Stage]:
            if (lane, id(actor)) not in stages:
                watchdog = self._watchdogs[lane or 0]
                observe = partial(self._notify, watchdog)
                stages[lane, id(actor)] = Stage(name, actor, partial(self._send, lane), watchdog.begin, observe, lane)
            return full_name(name, lane), stages[lane, id(actor)]

        if router is None:
            yield from (stage(name, actor) for name, actor in vars(lanes[0]).items())
            return
        yield from (stage(name, getattr(lanes[0], name)) for name in SHARED)
        yield stage(ROUTER, router)
        for lane, actors in enumerate(lanes):
            yield from (stage(name, getattr(actors, name), lane) for name in PER_LANE)

    def _send(self, lane: int | None, message: Message) -> None:
        self._wiring.post(message, lane)

    def _notify(self, watchdog: Watchdog, record: MessageRecord) -> None:
        watchdog.end(record.message)
        for observe in tuple(self._watchers):
            observe(record)
