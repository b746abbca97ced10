"""Requests of each lane in the view of the router, and the lane's load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rekindle.assembly.routing.pages import PageCounts
from rekindle.core.messages import Admit
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason
from rekindle.settings.route import LaneLoad


class LaneView(Protocol):
    """The router's view of a lane's scheduler, on the engine's loop."""

    @property
    def overdue(self) -> bool:
        """True while a tick of the lane exceeds `watchdog_timeout`."""

    def uncached(self, request: Request) -> int:
        """Return the number of a request's initial tokens to compute now."""

    def remaining(self, request_id: int) -> int | None:
        """Return the number of tokens to compute before a running request's next one; None for others."""


@dataclass(slots=True)
class RouterEntry:
    """One request in the router: in progress, or with a held prefix.

    Attributes:
        admit: the message to its lane.
        pages: the page hashes of its initial tokens; see `pages_of`.
        lane: the number of its lane; None while it waits for one.
        tokens: the estimated tokens to compute; 0 after its first token.
        ending: the end reason, once the caller or a stop string has ended it.
        started: whether the caller has received its `Started`.
        losses: the number of lanes lost with it.
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


class LaneRequests:
    """The requests of one lane, as the `Router` counts them.

    Attributes:
        pending: the requests with an uncomputed prompt, by id.
        expected_pages: the pages of the pending requests.
        in_flight, total_given: `in_flight` and `given` of `LaneLoad`.
        loss: the error of the lane's loss; None while it serves.
        for_good: whether the loss is final.
    """

    def __init__(self, number: int, view: LaneView):
        self._number, self._view = number, view
        self.pending: dict[int, RouterEntry] = {}
        self.expected_pages = PageCounts()
        self.in_flight = 0
        self.total_given = 0
        self.loss: Exception | None = None
        self.for_good = False

    @property
    def overdue(self) -> bool:
        """True while a tick of the lane exceeds `watchdog_timeout`."""
        return self._view.overdue

    def load(self, request: Request, pages: Sequence[int], page_size: int, slots: int) -> LaneLoad:
        """Return the lane's load, for a request with these pages."""
        tokens = len(request.initial_tokens)
        expected_tokens = self.expected_pages.prefix(pages[: (tokens - 1) // page_size]) * page_size
        uncached = min(self._view.uncached(request), tokens - expected_tokens)
        pending = sum(map(self._remaining, self.pending.values()))
        return LaneLoad(self._number, pending, uncached, self.in_flight, self.total_given, slots)

    def is_computing(self, request_id: int) -> bool:
        """Return True if initial tokens of a request remain to compute, even after its first output."""
        return bool(self._view.remaining(request_id))

    def take(self, entry: RouterEntry, uncached: int) -> None:
        """Assign a request to the lane, with its number of uncached tokens."""
        entry.lane, entry.tokens = self._number, max(1, uncached)
        self.total_given += 1
        self.in_flight += 1
        self.pending[entry.id] = entry
        self.expected_pages.add(entry.pages)

    def mark_computed(self, entry: RouterEntry) -> None:
        """Mark the prompt of a request as computed."""
        if entry.tokens:
            entry.tokens = 0
            del self.pending[entry.id]
            self.expected_pages.remove(entry.pages)

    def leave(self, entry: RouterEntry) -> None:
        """Remove a request."""
        self.mark_computed(entry)
        self.in_flight -= 1

    def _remaining(self, entry: RouterEntry) -> int:
        remaining = self._view.remaining(entry.id)
        return entry.tokens if remaining is None else min(entry.tokens, remaining)
