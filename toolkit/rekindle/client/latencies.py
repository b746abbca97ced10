"""Latency histograms of requests, and counts of their finish reasons."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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

    def take(self, message: Started | Rejected, record: Record) -> None:
        """Count the start or the failure of a request."""
        match message:
            case Started():
                self.queued.add(record.elapsed())
            case Rejected():
                self.ended["failed"] += 1

    def take_texts(self, texts: Iterable[tuple[Record, Text]], now: float) -> list[float]:
        """Count texts, and tell their requests the time, by `perf_counter`; return the times to first tokens.

        Call this before a text changes its request's record.
        """
        first_tokens: list[float] = []
        between: dict[float, int] = {}  # few different times, as tokens of a tick arrive together
        for record, text in texts:
            output, count = record.output, len(text.token_ids)
            gap = output.arrive(now) if count and not output.repeats_prefix else None
            if record.synthetic:
                continue
            if gap is not None:
                between[gap / count] = between.get(gap / count, 0) + count
            elif count and not output.repeats_prefix:
                first_tokens.append(now - output.submitted)
            if text.end is not None:
                self.ended[text.end] += 1
                self.total.add(now - output.submitted)
        for gap, times in between.items():
            self.between_tokens.add(gap, times)
        for seconds in first_tokens:
            self.first_token.add(seconds)
        return first_tokens
