"""Routes: functions that choose the lane of a request. Three routes have names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rekindle.core.concurrency.warning import trace_of, warn_again
from rekindle.core.request.request import Request


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """Load of a lane in the view of a route.

    Attributes:
        lane: number of the lane, from 0.
        pending: tokens of assigned prompts not yet computed.
        uncached: tokens of the new request's prompt that the lane would have to compute: neither cached there nor among
            its pending tokens.
        in_flight: unfinished requests of the lane.
        given: requests ever assigned to the lane.
        slots: largest number of requests that run at once.
    """

    lane: int
    pending: int
    uncached: int
    in_flight: int
    given: int
    slots: int

    @property
    def full(self) -> bool:
        """True if another request would wait for a free slot."""
        return self.in_flight >= self.slots


Choose = Callable[[Request, Sequence[LaneLoad]], int]
"""A function from a request and the loads of lanes to the number of one. Lost lanes are left out, and stuck lanes while
another serves."""
Route = Literal["prefix", "round-robin", "shortest-queue"] | Choose


def prefix(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return the lane with the fewest tokens to compute before the request's first token, with a free slot if possible.

    Ties go to the lane with the fewest unfinished requests, then the fewest requests so far, so that all caches fill.
    """
    able = [load for load in lanes if not load.full] or lanes
    return min(able, key=lambda load: (load.pending + load.uncached, load.in_flight, load.given, load.lane)).lane


def round_robin(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return each lane in turn: the lane with the fewest requests so far."""
    return min(lanes, key=lambda load: (load.given, load.lane)).lane


def shortest_queue(request: Request, lanes: Sequence[LaneLoad]) -> int:
    """Return the lane with the fewest unfinished requests. Ties go to the lane with the fewest requests so far."""
    return min(lanes, key=lambda load: (load.in_flight, load.given, load.lane)).lane


ROUTES: Mapping[str, Choose] = {"prefix": prefix, "round-robin": round_robin, "shortest-queue": shortest_queue}


class Routing:
    """A route in use by a session. After its first failure, "prefix" chooses the lanes.

    Args:
        route: the name of a route, or a function.
    """

    def __init__(self, route: str | Choose):
        self._route = ROUTES[route] if isinstance(route, str) else route

    def lane(self, request: Request, lanes: Sequence[LaneLoad], count: int) -> int:
        """Return the number of the lane for a request.

        If the route fails, warn and choose by "prefix" from now on. A lane that is not among the offered ones, because
        it is lost or stuck, is no failure: "prefix" chooses another for this request.

        Args:
            lanes: the loads of the lanes to choose from.
            count: the number of all lanes.
        """
        route = self._route
        try:
            number: object = route(request, lanes)
            trace = ""
            if not isinstance(number, bool) and isinstance(number, int) and 0 <= number < count:
                return number if any(number == load.lane for load in lanes) else prefix(request, lanes)
            what = f"it must return one of the numbers {[load.lane for load in lanes]}, and returned {number!r:.80}"
        except BaseException as error:  # even SystemExit would end the engine for all
            what, trace = "it raised an error", f"\n{trace_of(error, __file__)}"
        self._route = prefix
        code = getattr(route, "__code__", self.lane.__code__)
        warn_again(
            f"the route {getattr(route, '__qualname__', repr(route))!s:.80} failed: {what}. It is not called again: "
            'from now on requests go to lanes as with route="prefix". Correct it and open the session again.' + trace,
            code.co_filename,
            code.co_firstlineno,
        )
        return prefix(request, lanes)
