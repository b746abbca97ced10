"""The requests of each lane, as its router placed them, and what follows from them of its load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rekindle.core.messages import Admit
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.core.route import LaneLoad
from rekindle.core.routing.pages import PageCounts


class LaneView(Protocol):
    """The scheduler of a lane as the router sees it, on the engine's loop."""

    def uncached(self, request: Request) -> int:
        """Return the number of a request's known tokens that would have to be computed now."""

    def remaining(self, request_id: int) -> int | None:
        """Return the number of tokens that a running request has to compute until its next one; None for others."""


@dataclass(slots=True)
class Placed:
    """A request that has not ended, or that is held.

    Attributes:
        admit: the request, as its lane was given it.
        pages: of its known tokens, by `pages_of`.
        lane: the number of its lane; None while it waits for one.
        tokens: those that it was reckoned to compute; 0 once its first token is there.
        ending: how it is to end, if it was told to.
        started: whether its start was told.
        losses: how many lanes were lost with it.
    """

    admit: Admit
    pages: tuple[int, ...]
    lane: int | None = None
    tokens: int = 0
    ending: EndReason | None = None
    started: bool = False
    losses: int = 0

    @property
    def id(self) -> int:
        """The id of the request."""
        return self.admit.request.id


class PlacedLane:
    """The requests that were given to one lane.

    Attributes:
        pending: the requests whose prompts are not computed yet, by id.
        coming: the pages of these.
        in_flight, given: see `LaneLoad`.
        lost: why the lane is lost; None while it serves.
        for_good: whether it is lost for ever.
    """

    def __init__(self, number: int, view: LaneView):
        self._number, self._view = number, view
        self.pending: dict[int, Placed] = {}
        self.coming = PageCounts()
        self.in_flight = 0
        self.given = 0
        self.lost: Exception | None = None
        self.for_good = False

    def load(self, request: Request, pages: Sequence[int], page_size: int, slots: int) -> LaneLoad:
        """Return how it stands, for a request with these pages."""
        tokens = len(request.initial_tokens)
        coming = self.coming.prefix(pages[: (tokens - 1) // page_size]) * page_size
        uncached = min(self._view.uncached(request), tokens - coming)
        pending = sum(map(self._left, self.pending.values()))
        return LaneLoad(self._number, pending, uncached, self.in_flight, self.given, slots)

    def is_computing(self, request_id: int) -> bool:
        """Tell whether tokens of a request that were known are still to be computed, though some are told."""
        return bool(self._view.remaining(request_id))

    def take(self, placed: Placed, uncached: int) -> None:
        """Have the lane compute these tokens of a request."""
        placed.lane, placed.tokens = self._number, max(1, uncached)
        self.given += 1
        self.in_flight += 1
        self.pending[placed.id] = placed
        self.coming.add(placed.pages)

    def computed(self, placed: Placed) -> None:
        """Count the prompt of a request as pending no more."""
        if placed.tokens:
            placed.tokens = 0
            del self.pending[placed.id]
            self.coming.remove(placed.pages)

    def leave(self, placed: Placed) -> None:
        """Count a request no more."""
        self.computed(placed)
        self.in_flight -= 1

    def _left(self, placed: Placed) -> int:
        left = self._view.remaining(placed.id)
        return placed.tokens if left is None else min(placed.tokens, left)
