"""Routes: functions that choose a lane for a request. Three have names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rekindle.core.concurrency.warning import trace_of, warn_again
from rekindle.core.request.request import Request


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """A lane as a route sees it when it has a request to give away.

    Attributes:
        lane: its number, from 0 on.
        pending: tokens of prompts that were given to it and are not computed yet.
        uncached: tokens of the request's own prompt that it would have to compute: those that it has neither cached nor
            among its pending ones.
        in_flight: requests that were given to it and have not ended.
        given: requests that were ever given to it.
        slots: requests that it can run at once.
    """

    lane: int
    pending: int
    uncached: int
    in_flight: int
    given: int
    slots: int

    @property
    def full(self) -> bool:
        """Tell whether a request that is given to it waits until another ends."""
        return self.in_flight >= self.slots


Choose = Callable[[Request, Sequence[LaneLoad]], int]
"""A function of a request and the lanes that returns the number of a lane."""


def prefix(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return the lane that has the least to compute until the request's first token, of those with a free slot if any.

    Among equals, it is the one with the fewest requests, then the one that was given fewest, so that all caches fill.
    """
    able = [load for load in lanes if not load.full] or lanes
    return min(able, key=lambda load: (load.pending + load.uncached, load.in_flight, load.given, load.lane)).lane


def round_robin(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return the lane whose turn it is."""
    return min(lanes, key=lambda load: (load.given, load.lane)).lane


def shortest_queue(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return the lane with the fewest requests that have not ended; among equals, the one that was given fewest."""
    return min(lanes, key=lambda load: (load.in_flight, load.given, load.lane)).lane


ROUTES: Mapping[str, Choose] = {"prefix": prefix, "round-robin": round_robin, "shortest-queue": shortest_queue}


class Routing:
    """A route as it is applied. Once it has failed, it is not asked again, and "prefix" chooses.

    Args:
        route: the name of one, or a function.
    """

    def __init__(self, route: str | Choose):
        self._route = ROUTES[route] if isinstance(route, str) else route

    def lane(self, request: Request, lanes: Sequence[LaneLoad]) -> int:
        """Return the number of one of these lanes. If the route fails, warn, and choose for it."""
        route = self._route
        try:
            chosen: object = route(request, lanes)
            trace = ""
            if not isinstance(chosen, bool) and isinstance(chosen, int) and any(chosen == load.lane for load in lanes):
                return chosen
            what = f"it must return one of the numbers {[load.lane for load in lanes]}, and returned {chosen!r:.80}"
        except Exception as error:
            what, trace = "it raised an error", f"\n{trace_of(error, __file__)}"
        self._route = prefix
        code = getattr(route, "__code__", self.lane.__code__)
        warn_again(
            f"the route {getattr(route, '__qualname__', repr(route))!s:.80} failed: {what}. It is not asked again, and "
            'from now on requests go to lanes as with route="prefix". Correct it and open the session again.' + trace,
            code.co_filename,
            code.co_firstlineno,
        )
        return prefix(request, lanes)
