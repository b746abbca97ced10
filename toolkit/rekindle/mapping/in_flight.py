"""Requests of a map in flight."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rekindle.client.batches.run import Outcome
from rekindle.client.handle import Handle
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Wait
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.mapping.items import Item


@dataclass(frozen=True, slots=True)
class EndedItem:
    """Item with its outcome."""

    item: Item
    outcome: Outcome


class InFlight:
    """Requests of a map in the engine, including ended requests not yet taken out.

    Args:
        submit: submits the request of a prompt.
    """

    def __init__(self, submit: Callable[[Prompt], Handle]):
        self._submit = submit
        self._running: dict[int, tuple[Item, Handle]] = {}
        self._ends: Feed[int] = Feed()
        self._position = 0
        self._settled_tokens = 0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far, including ended requests."""
        return self._settled_tokens + sum(handle.record.generated for _, handle in tuple(self._running.values()))

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
            handle = self._submit(item.prompt)
        except InvalidRequest as error:
            return EndedItem(item, error)
        self._running[item.place] = item, handle
        handle.record.pieces.when_closed(partial(self._ends.put, item.place))
        return None

    def wait(self, timeout: float | None) -> Wait:
        """Return the wait for the end of the next request, of at most `timeout` seconds."""
        return Wait(self._ends, self._position, timeout)

    def take_ended(self) -> list[EndedItem]:
        """Take out all ended requests, and return their items with outcomes."""
        self._position = len(self._ends.items)  # read first, because more requests may end during the loop below
        ended = []
        for place in [place for place, (_, handle) in self._running.items() if handle.done]:
            item, handle = self._running.pop(place)
            outcome = handle.record.outcome
            assert outcome is not None, "a request that has ended has an outcome"
            self._settled_tokens += handle.record.generated
            ended.append(EndedItem(item, outcome))
        return ended

    def cancel(self) -> None:
        """Cancel all unfinished requests."""
        for _, handle in tuple(self._running.values()):
            handle.cancel()
