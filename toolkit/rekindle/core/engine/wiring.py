"""The actors of an engine, and which of them takes which message."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rekindle.core.engine.actor import Actor
from rekindle.core.errors import ConfigError
from rekindle.core.messages import (
    Admit,
    Advance,
    Advanced,
    Archive,
    CacheSaved,
    CacheSaving,
    Cancel,
    Collect,
    Collected,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    Found,
    FromLane,
    Gathered,
    KeepWeights,
    LaneBack,
    LaneLost,
    Lost,
    Message,
    NewWeights,
    Offload,
    Offloaded,
    Outputs,
    Overdue,
    PagesStaged,
    Plan,
    PutPages,
    Received,
    Rejected,
    Returned,
    SaveCache,
    SendPages,
    Settled,
    StagePages,
    Started,
    Stopped,
    Submit,
    TakePages,
    Texts,
    Tokenize,
    Tokenized,
    ToLane,
    UseWeights,
    WeightsKept,
    WeightsUsed,
    Withdraw,
    Write,
    Written,
)


@dataclass(frozen=True)
class Actors:
    """The actors of an engine; each may be replaced by another that takes the same messages.

    With several lanes, these are the actors of one of them, and those that all lanes share: the intake, the tokenizer
    and the detokenizer. The shared ones are those of the first lane.

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
        return {kind: getattr(self, name) for name, kinds in TAKES.items() for kind in kinds}


SHARED = ("intake", "tokenizer", "detokenizer")
"""The actors that all lanes of an engine share, by name."""
TAKES: Mapping[str, tuple[type[Message], ...]] = {
    "intake": (Submit, Cancel, Tokenized),
    "tokenizer": (Tokenize,),
    "scheduler": (
        *(Admit, Withdraw, Settled, Stopped, Advanced, Overdue),
        *(Offloaded, Fetched, Written, SaveCache, NewWeights, KeepWeights, SendPages, TakePages),
        *(Received, Lost, Found),  # of a lane in another process
    ),
    "stepper": (Plan, Offload, UseWeights, Collect, PutPages),
    "settler": (Dispatched,),
    "detokenizer": (Outputs,),
    "grammars": (Advance,),
    "host_tier": (Gathered, Fetch, Drop, Archive, StagePages),
    "disk_tier": (Write,),
}
"""The messages that each actor takes."""
OWN = tuple(name for name in TAKES if name not in SHARED)
"""The actors that each lane has, by name."""
ROUTER = "router"
ROUTED = (Admit, Withdraw, Stopped, NewWeights, KeepWeights, SaveCache)
"""Messages to the scheduler that a router takes first, where there are several lanes."""
JOINED = (
    *(Rejected, Started, Outputs, WeightsUsed, WeightsKept, CacheSaving, CacheSaved, Collected, PagesStaged),
    *(LaneLost, LaneBack, Returned),
)
"""What lanes say of their requests and of themselves; a router takes it first."""
TO_CALLER = (Rejected, Started, Texts, WeightsUsed, WeightsKept, CacheSaving, CacheSaved)
"""Messages that leave the engine."""

Compose = Callable[[Actors], Actors]
"""A function from the actors of an engine, before they run, to those that shall run instead."""


def composed(lanes: Sequence[Actors], compose: Compose | None) -> list[Actors]:
    """Return the actors of each lane as `compose` wants them; what lanes share is as it wants it for the first.

    Raises:
        ConfigError: `compose` returned something else.
    """
    if compose is None:
        return list(lanes)
    chosen = [_composed(actors, compose) for actors in lanes]
    shared = {name: getattr(chosen[0], name) for name in SHARED}
    return [replace(actors, **shared) for actors in chosen]


def _composed(actors: Actors, compose: Compose) -> Actors:
    made: object = compose(actors)
    if not isinstance(made, Actors):
        raise ConfigError(
            f"compose must return Actors, such as dataclasses.replace(actors, settler=...); got {made!r:.80}"
        )
    for name, actor in vars(made).items():
        if not callable(getattr(actor, "handle", None)):
            raise ConfigError(f"compose must give an actor with a handle() for {name}; got {actor!r:.80}")
    return made


Deliver = Callable[[Message], None]
Routes = dict[type[Message], Deliver]
"""Where each kind of message goes."""


class Wiring:
    """The way of each message to its actor.

    What an actor of a lane says goes to the actors of that lane, and to the router or the shared actors if none of them
    takes it.

    Args:
        actors: what gives a message to each actor, by its full name.
        lanes: how many lanes there are.
        deliver: takes what leaves the engine.
    """

    def __init__(self, actors: Mapping[str, Deliver], lanes: int, deliver: Deliver):
        self._actors = actors
        self._outer: Routes = dict.fromkeys(TO_CALLER, deliver)
        if ROUTER not in actors:
            self._inner = [self._outer]
            self._outer |= self._to(TAKES, None)
            return
        router = actors[ROUTER]
        self._outer |= self._to(SHARED, None) | dict.fromkeys((*ROUTED, FromLane), router) | {ToLane: self._to_lane}
        self._inner = [
            self._outer
            | self._to(OWN, lane)
            | dict.fromkeys(JOINED, lambda said, lane=lane: router(FromLane(lane, said)))
            for lane in range(lanes)
        ]

    def post(self, message: Message, lane: int | None) -> None:
        """Send a message to its actor or to callers. Any thread may call this; it never blocks.

        Args:
            lane: that of the actor that says it; None for those that lanes share, and for callers.

        Raises:
            TypeError: nobody takes such a message.
        """
        routes = self._outer if lane is None else self._inner[lane]
        route = routes.get(type(message))
        if route is None:
            raise TypeError(f"an actor must say messages of rekindle.core.messages, and nobody takes {message!r:.80}")
        route(message)

    def _to_lane(self, message: Message) -> None:
        assert isinstance(message, ToLane), "this route is of ToLane"
        self.post(message.message, message.lane)

    def _to(self, names: Iterable[str], lane: int | None) -> Routes:
        """Return where the messages go that some of the actors take."""
        return {kind: self._actors[full_name(name, lane)] for name in names for kind in TAKES[name]}


def full_name(actor: str, lane: int | None) -> str:
    """Return the name of an actor, with its lane if it is one of several."""
    return actor if lane is None else f"lane {lane} {actor}"
