"""A batch in a loop: each answer as it ends, or the pieces of all as they come."""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar, cast

from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import BatchRun
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.loops import Loop
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.request.tokens import Piece

T = TypeVar("T")
Ended = TypeVar("Ended")


class BatchLoop(Loop[T]):
    """A loop over a batch, for `async for` or `for`. Dropping or closing it cancels what of the batch has not ended.

    The prompts are checked, and the requests made, when the loop begins. `contextlib.aclosing(loop)` closes it where a
    block ends, and `contextlib.closing(loop)` in blocking code.
    """

    def __init__(self, batch: Batch):
        super().__init__()
        self._batch = batch
        self._run: BatchRun | None = None
        self._closed = False

    def close(self) -> None:
        """Cancel what has not ended, and give nothing further.

        Returns at once; any thread may call this, any number of times.
        """
        self._closed = True
        if self._run is not None:
            self._run.cancel()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        made = self._run
        state = "not begun" if made is None else f"{len(made.ends.items)} ended"
        return f"<rekindle.{type(self).__name__} of {len(self._batch)} requests, {state}, for 'async for' or 'for'>"

    @abstractmethod
    def _following(self, run: BatchRun) -> Waits[T | None]:
        """Wait for the next item; return None where there is no other."""

    def _next(self) -> Waits[T | None]:
        __tracebackhide__ = True
        if self._closed:
            return None
        try:
            if self._run is None:
                self._run = yield from self._batch.begun()
            if self._closed:  # by another thread, while the prompts were checked
                self._run.cancel()
                return None
            return (yield from self._following(self._run))
        except BaseException as left:
            self.close()
            if self._run is not None:
                self._run.leave(left)
            raise


class AsCompleted(BatchLoop[tuple[int, Ended]], Generic[Ended]):
    """The outcomes of a batch as they come, each with the place of its prompt in the list."""

    def __init__(self, batch: Batch):
        super().__init__(batch)
        self._seen = 0

    def _following(self, run: BatchRun) -> Waits[tuple[int, Ended] | None]:
        __tracebackhide__ = True
        ends = run.ends
        yield Wait(ends, self._seen)
        if self._seen == len(ends.items):
            return None
        place = ends.items[self._seen]
        self._seen += 1
        if run.failed == place:
            run.answers()
        return place, cast(Ended, run.outcome(place))


class Streams(BatchLoop[tuple[int, Piece]]):
    """The pieces of a batch as they come, each with the place of its prompt in the list."""

    def __init__(self, batch: Batch):
        super().__init__(batch)
        self._feeds: list[Feed[Piece]] = []
        self._grown: Feed[int] | None = None  # the places of requests of which something may have come
        self._seen = 0
        self._read = [0] * len(batch)
        self._ready: deque[tuple[int, Piece]] = deque()

    def _following(self, run: BatchRun) -> Waits[tuple[int, Piece] | None]:
        __tracebackhide__ = True
        if self._grown is None:
            self._feeds = [handle.record.pieces for handle in run.handles]
            self._grown = _grown(self._feeds, run.ends)
        while run.failed is None:
            if self._ready:
                return self._ready.popleft()
            yield Wait(self._grown, self._seen)
            if self._seen == len(self._grown.items):
                break
            place = self._grown.items[self._seen]
            self._seen += 1
            new = self._feeds[place].items[self._read[place] :]
            self._read[place] += len(new)
            self._ready.extend((place, piece) for piece in new)
        run.answers()
        return None


def _grown(feeds: Sequence[Feed[Piece]], ends: Feed[int]) -> Feed[int]:
    """Return a feed of the place of each feed that grows, which is closed with `ends`."""
    grown: Feed[int] = Feed()
    for place, feed in enumerate(feeds):
        feed.follow(partial(grown.put, place))
        grown.put(place)  # something may have come before
    ends.when_closed(grown.close)
    return grown
