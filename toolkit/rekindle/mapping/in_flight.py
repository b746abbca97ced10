"""The requests of a map that are in the engine."""

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
    """An item, and what came of it."""

    item: Item
    outcome: Outcome


class InFlight:
    """The requests of a map that have not been taken out again.

    Args:
        submit: makes the request of a prompt.
    """

    def __init__(self, submit: Callable[[Prompt], Handle]):
        self._submit = submit
        self._running: dict[int, tuple[Item, Handle]] = {}
        self._ends: Feed[int] = Feed()
        self._seen = 0
        self._landed = 0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> int:
        """The tokens that have been generated, also by those that have ended."""
        return self._landed + sum(handle.record.generated for _, handle in tuple(self._running.values()))

    @property
    def unfinished(self) -> list[Item]:
        """The items whose requests have not been taken out."""
        return [item for item, _ in self._running.values()]

    def enter(self, item: Item) -> EndedItem | None:
        """Make the request of an item, or return why it cannot be made.

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
        """Return the wait for the next end."""
        return Wait(self._ends, self._seen, timeout)

    def landed(self) -> list[EndedItem]:
        """Take out the requests that have ended since the last time."""
        self._seen = len(self._ends.items)  # before the look, which may see ends that are not told of yet
        ended = []
        for place in [place for place, (_, handle) in self._running.items() if handle.done]:
            item, handle = self._running.pop(place)
            outcome = handle.record.outcome
            assert outcome is not None, "a request that has ended has an outcome"
            self._landed += handle.record.generated
            ended.append(EndedItem(item, outcome))
        return ended

    def cancel(self) -> None:
        """End all requests that have not ended."""
        for _, handle in tuple(self._running.values()):
            handle.cancel()
