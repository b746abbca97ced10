"""The actors of an engine, and the routes of messages between them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rekindle.core.engine.actor import Actor
from rekindle.core.errors import ConfigError
from rekindle.core.messages import (
    AdapterPut,
    Admit,
    Advance,
    Advanced,
    Archive,
    CacheSaved,
    CacheSaving,
    Cancel,
    Collect,
    Collected,
    CutPicture,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    FromLane,
    Gathered,
    Inspect,
    Inspected,
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
    PictureCut,
    PictureRead,
    Plan,
    PutAdapter,
    PutPages,
    ReadPicture,
    Received,
    Rejected,
    ReplicaFound,
    Returned,
    SaveCache,
    SendPages,
    Settled,
    StagePages,
    Started,
    StateLost,
    Stopped,
    Submit,
    TakePages,
    Texts,
    Tokenize,
    Tokenized,
    ToLane,
    UseWeights,
    WeightsKept,
    WeightsReplaced,
    WeightsUsed,
    Withdraw,
    Write,
    Written,
)


@dataclass(frozen=True)
class Actors:
    """The actors of an engine. Each may be replaced by another actor for the same messages.

    With several lanes, these are the actors of one lane, and the actors shared by all lanes: the intake, the tokenizer
    and the detokenizer. The first lane's shared actors are used.

    Wrap the scheduler rather than replace it: `session.stats` and `session.cache` show the original, and it holds the
    restored pages.
    """

    intake: Actor
    tokenizer: Actor
    scheduler: Actor
    stepper: Actor
    settler: Actor
    detokenizer: Actor
    grammars: Actor
    vision: Actor
    host_tier: Actor
    disk_tier: Actor

    def by_message(self) -> Mapping[type[Message], Actor]:
        """Return the actor of each message type; messages of `TO_CALLER` have none."""
        return {kind: getattr(self, name) for name, kinds in TAKES.items() for kind in kinds}


SHARED = ("intake", "tokenizer", "detokenizer")
"""Names of the actors shared by all lanes of an engine."""
TAKES: Mapping[str, tuple[type[Message], ...]] = {
    "intake": (Submit, Cancel, Tokenized),
    "tokenizer": (Tokenize,),
    "scheduler": (
        *(Admit, Withdraw, Settled, Stopped, Advanced, PictureCut, Overdue),
        *(Offloaded, Fetched, Written, SaveCache, NewWeights, KeepWeights, SendPages, TakePages),
        *(Received, Lost, ReplicaFound),  # of a lane in another process
    ),
    "stepper": (Plan, ReadPicture, Offload, UseWeights, Collect, PutPages, PutAdapter, Inspect, StateLost),
    "settler": (Dispatched,),
    "detokenizer": (Outputs,),
    "grammars": (Advance,),
    "vision": (CutPicture, PictureRead),
    "host_tier": (Gathered, Fetch, Drop, Archive, StagePages),
    "disk_tier": (Write,),
}
"""Message types taken by each actor."""
PER_LANE = tuple(name for name in TAKES if name not in SHARED)
"""Names of the actors of each lane."""
ROUTER = "router"
ROUTED = (Admit, Withdraw, Stopped, NewWeights, KeepWeights, SaveCache, PutAdapter, Inspect)
"""Messages to the lanes by way of the router, if there are several."""
_ANSWERS = (WeightsUsed, WeightsKept, WeightsReplaced, AdapterPut, Inspected, CacheSaving, CacheSaved)
FROM_LANES = (Rejected, Started, Outputs, *_ANSWERS, Collected, PagesStaged, LaneLost, LaneBack, Returned)
"""Messages from a lane to shared actors, callers or the router itself, by way of the router."""
TO_CALLER = (Rejected, Started, Texts, *_ANSWERS)
"""Messages to callers, outside the engine."""

Compose = Callable[[Actors], Actors]
"""A function from an engine's actors, before they run, to their replacements."""


def composed(lanes: Sequence[Actors], compose: Compose | None) -> list[Actors]:
    """Return the actors of each lane after `compose`; shared actors are those of the first lane's result.

    Raises:
        ConfigError: `compose` returned something else.
    """
    if compose is None:
        return list(lanes)
    results = [_composed(actors, compose) for actors in lanes]
    shared = {name: getattr(results[0], name) for name in SHARED}
    return [replace(actors, **shared) for actors in results]


def _composed(actors: Actors, compose: Compose) -> Actors:
    result: object = compose(actors)
    if not isinstance(result, Actors):
        raise ConfigError(
            f"compose must return Actors, such as dataclasses.replace(actors, settler=...); got {result!r:.80}"
        )
    for name, actor in vars(result).items():
        if not callable(getattr(actor, "handle", None)):
            raise ConfigError(f"compose must give an actor with a handle() for {name}; got {actor!r:.80}")
    return result


Deliver = Callable[[Message], None]
Routes = dict[type[Message], Deliver]
"""Destination of each message type."""


class Wiring:
    """The routes of an engine's messages, by message type and by the lane of the sender.

    The `Engine` posts every message through it. A message from an actor of a lane goes to an actor of the same lane,
    else to the router, a shared actor or a caller.

    Args:
        actors: the function that delivers to each actor, by its full name.
        lanes: number of lanes.
        deliver: function for messages to callers.
    """

    def __init__(self, actors: Mapping[str, Deliver], lanes: int, deliver: Deliver):
        self._actors = actors
        self._shared_routes: Routes = dict.fromkeys(TO_CALLER, deliver)
        if ROUTER not in actors:
            self._lane_routes = [self._shared_routes]
            self._shared_routes |= self._to(TAKES, None)
            return
        router = actors[ROUTER]
        self._shared_routes |= (
            self._to(SHARED, None) | dict.fromkeys((*ROUTED, FromLane), router) | {ToLane: self._to_lane}
        )
        self._lane_routes = [
            self._shared_routes
            | self._to(PER_LANE, lane)
            | dict.fromkeys(FROM_LANES, lambda message, lane=lane: router(FromLane(lane, message)))
            for lane in range(lanes)
        ]

    def post(self, message: Message, lane: int | None) -> None:
        """Send a message to its actor or to callers. Thread-safe; never blocks.

        Args:
            lane: lane of the sending actor; None for shared actors and callers.

        Raises:
            TypeError: no actor takes messages of this type.
        """
        routes = self._shared_routes if lane is None else self._lane_routes[lane]
        route = routes.get(type(message))
        if route is None:
            raise TypeError(f"an actor must send messages of rekindle.core.messages; no actor takes {message!r:.80}")
        route(message)

    def _to_lane(self, message: Message) -> None:
        assert isinstance(message, ToLane), "this route is for ToLane"
        self.post(message.message, message.lane)

    def _to(self, names: Iterable[str], lane: int | None) -> Routes:
        """Return the routes of the messages for some actors."""
        return {kind: self._actors[full_name(name, lane)] for name in names for kind in TAKES[name]}


def full_name(actor: str, lane: int | None) -> str:
    """Return the name of an actor, with its lane if there are several lanes."""
    return actor if lane is None else f"lane {lane} {actor}"
