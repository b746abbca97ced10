"""Latency histograms of requests, and counts of their finish reasons."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from rekindle.client.record import Record
from rekindle.core.messages import Rejected, Started, Text

TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds of buckets for times per token."""
REQUEST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
"""Upper bounds in seconds of buckets for times per request."""


class Histogram:
    """Histogram of times. One thread writes; any thread may read.

    Args:
        bounds: upper bounds of the buckets, in seconds, ascending; a last bucket counts all longer times.

    Attributes:
        sum: the sum of all times, in seconds.
    """

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a time, `times` times."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self.sum += seconds * times

    @property
    def up_to(self) -> Iterator[tuple[float, int]]:
        """Cumulative counts, as (upper bound, number of times up to the bound). The last bound is infinite."""
        return zip((*self._bounds, float("inf")), accumulate(tuple(self._counts)), strict=True)


class Latencies:
    """Latencies of all requests of a session.

    Attributes:
        queued: seconds from submission until a request left the waiting queue.
        first_token: seconds from submission to the first token.
        between_tokens: seconds between two tokens of a request.
        total: seconds from submission to the end of a request.
        ended: the number of requests by finish reason; see `Generation.finish_reason`, and "failed".
    """

    def __init__(self) -> None:
        self.queued, self.first_token, self.total = (Histogram(REQUEST_BOUNDS) for _ in range(3))
        self.between_tokens = Histogram(TOKEN_BOUNDS)
        self.ended = Counter[str]()

    def take(self, message: Started | Rejected | Text, record: Record) -> None:
        """Count a message of the engine about a request. Call this before the message changes the request's record."""
        now = record.elapsed()
        match message:
            case Started():
                self.queued.add(now)
            case Rejected():
                self.ended["failed"] += 1
            case Text(token_ids=tokens, end=end):
                if tokens and not record.repeats_prefix:
                    self._count_tokens(len(tokens), now, record.last_token)
                if end is not None:
                    self.ended[end] += 1
                    self.total.add(now)

    def _count_tokens(self, count: int, now: float, previous: float | None) -> None:
        """Count the time to the first token, or the times between tokens; `previous` is the time of the last token."""
        if previous is None:
            self.first_token.add(now)
        else:
            self.between_tokens.add((now - previous) / count, count)
