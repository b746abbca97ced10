"""Loops over a batch: outcomes in order of completion, or the pieces of all requests as they arrive."""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar, cast

from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import BatchRun
from rekindle.client.concurrency.loops import Loop
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.request.tokens import Piece

T = TypeVar("T")
Ended = TypeVar("Ended")


class BatchLoop(Loop[T]):
    """Loop over a batch, for `async for` or `for`. Dropping or closing it cancels the unfinished requests.

    The prompts are checked and the requests submitted when the loop begins. Use `contextlib.aclosing(loop)` to close
    it at the end of a block, or `contextlib.closing(loop)` in blocking code.
    """

    def __init__(self, batch: Batch):
        super().__init__()
        self._batch = batch
        self._run: BatchRun | None = None
        self._closed = False

    def close(self) -> None:
        """Cancel the unfinished requests, and stop the iteration. Thread-safe and idempotent."""
        self._closed = True
        if self._run is not None:
            self._run.cancel()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        run = self._run
        state = "not begun" if run is None else f"{len(run.ends.items)} ended"
        return f"<rekindle.{type(self).__name__} of {len(self._batch)} requests, {state}, for 'async for' or 'for'>"

    @abstractmethod
    def _next_item(self, run: BatchRun) -> Waits[T | None]:
        """Wait for the next item; return None after the last."""

    def _next(self) -> Waits[T | None]:
        __tracebackhide__ = True
        if self._closed:
            return None
        try:
            if self._run is None:
                self._run = yield from self._batch.start()
            if self._closed:  # closed by another thread while the prompts were checked
                self._run.cancel()
                return None
            return (yield from self._next_item(self._run))
        except BaseException as error:
            self.close()
            if self._run is not None:
                self._run.leave(error)
            raise


class AsCompleted(BatchLoop[tuple[int, Ended]], Generic[Ended]):
    """Outcomes of a batch in order of completion, each with the index of its prompt."""

    def __init__(self, batch: Batch):
        super().__init__(batch)
        self._position = 0

    def _next_item(self, run: BatchRun) -> Waits[tuple[int, Ended] | None]:
        __tracebackhide__ = True
        ends = run.ends
        yield Wait(ends, self._position)
        if self._position == len(ends.items):
            return None
        place = ends.items[self._position]
        self._position += 1
        if run.failed == place:
            run.answers()
        return place, cast(Ended, run.outcome(place))


class BatchStreams(BatchLoop[tuple[int, Piece]]):
    """Pieces of a batch as they arrive, each with the index of its prompt."""

    def __init__(self, batch: Batch):
        super().__init__(batch)
        self._feeds: list[Feed[Piece]] = []
        self._arrivals: Feed[int] | None = None  # indices of requests with possible new pieces
        self._position = 0
        self._positions = [0] * len(batch)
        self._ready: deque[tuple[int, Piece]] = deque()

    def _next_item(self, run: BatchRun) -> Waits[tuple[int, Piece] | None]:
        __tracebackhide__ = True
        if self._arrivals is None:
            self._feeds = [handle.record.pieces for handle in run.handles]
            self._arrivals = _merge_arrivals(self._feeds, run.ends)
        while run.failed is None:
            if self._ready:
                return self._ready.popleft()
            yield Wait(self._arrivals, self._position)
            if self._position == len(self._arrivals.items):
                break
            place = self._arrivals.items[self._position]
            self._position += 1
            new = self._feeds[place].items[self._positions[place] :]
            self._positions[place] += len(new)
            self._ready.extend((place, piece) for piece in new)
        run.answers()
        return None


def _merge_arrivals(feeds: Sequence[Feed[Piece]], ends: Feed[int]) -> Feed[int]:
    """Return a feed with the index of a feed whenever it grows; it closes together with `ends`."""
    arrivals: Feed[int] = Feed()
    for place, feed in enumerate(feeds):
        feed.follow(partial(arrivals.put, place))
        arrivals.put(place)  # for pieces that arrived before
    ends.when_closed(arrivals.close)
    return arrivals
