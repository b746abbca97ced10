"""Requests of a map in flight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Wait
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.mapping.items import Item


@dataclass(frozen=True, slots=True)
class EndedItem:
    """Item with its outcome.

    Attributes:
        item: the item.
        outcome: the result of the item, or the error in its place.
        weights: the numbers of the weights in use; empty for an error.
    """

    item: Item
    outcome: Any
    weights: Sequence[int] = ()


class ItemRequests(Protocol):
    """Requests of one item."""

    def settle(self) -> bool:
        """Submit the requests that waited for others; return True if all have ended."""

    @property
    def outcome(self) -> Any:
        """Result of the ended requests, or their error."""

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""

    @property
    def weights(self) -> Sequence[int]:
        """Numbers of the weights in use."""

    def cancel(self) -> None:
        """Cancel all unfinished requests."""


class InFlight:
    """Requests of a map in the engine, including ended requests not yet taken out.

    Args:
        submit: submits the requests of a prompt; the passed function is to be called as each of them ends.
    """

    def __init__(self, submit: Callable[[Prompt, Callable[[], None]], ItemRequests]):
        self._submit = submit
        self._running: dict[int, tuple[Item, ItemRequests]] = {}
        self._ends: Feed[int] = Feed()
        self._position = 0
        self._settled_tokens = 0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far, including ended requests."""
        return self._settled_tokens + sum(work.generated for _, work in tuple(self._running.values()))

    @property
    def unfinished(self) -> list[Item]:
        """Items of the requests not yet taken out."""
        return [item for item, _ in self._running.values()]

    def enter(self, item: Item) -> EndedItem | None:
        """Submit the request of an item; return the item with its error if it cannot be submitted.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        if isinstance(item.prompt, InvalidRequest):
            return EndedItem(item, item.prompt)
        try:
            work = self._submit(item.prompt, partial(self._ends.put, item.place))
        except InvalidRequest as error:
            return EndedItem(item, error)
        self._running[item.place] = item, work
        return None

    def wait(self, timeout: float | None) -> Wait:
        """Return the wait for the end of the next request, of at most `timeout` seconds."""
        return Wait(self._ends, self._position, timeout)

    def take_ended(self) -> list[EndedItem]:
        """Take out the requests with an end since the last call, and return the items with outcomes."""
        ends = self._ends.items[self._position :]  # a copy, because more requests may end meanwhile
        self._position += len(ends)
        return self._take(set(ends) & self._running.keys())

    def take_last(self) -> list[EndedItem]:
        """Take out all ended requests, also the ones of ends not yet delivered."""
        return self._take(set(self._running))

    def _take(self, places: set[int]) -> list[EndedItem]:
        ended = []
        for place in sorted(places):
            item, work = self._running[place]
            if work.settle():
                del self._running[place]
                self._settled_tokens += work.generated
                ended.append(EndedItem(item, work.outcome, work.weights))
        return ended

    def cancel(self) -> None:
        """Cancel all unfinished requests."""
        for _, work in tuple(self._running.values()):
            work.cancel()
