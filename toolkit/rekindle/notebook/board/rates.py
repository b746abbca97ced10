"""Tokens per second over the last minute, from irregular readings of a counter."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

SECONDS = 60
"""The length of the history, in seconds."""
RECENT = 2
"""The number of whole seconds in the rate `now`, in addition to the current second; with fewer, the rate would jump."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second.

    Attributes:
        now: the rate over the last two or three seconds; None in the first second.
        mean: the rate over the last minute, or since the first reading; None if `now` is None.
        seconds: the duration of `mean`.
        history: the number of tokens in each whole second of `mean`, latest last.
    """

    now: float | None = None
    mean: float | None = None
    seconds: float = 0.0
    history: tuple[float, ...] = ()


class Rates:
    """The values of a counter at each whole second of the last minute, interpolated between readings."""

    def __init__(self) -> None:
        self._marks: deque[float] = deque(maxlen=SECONDS + 1)
        self._began = 0.0
        self._last = (0.0, 0.0)

    def look(self, at: float, count: float) -> Rate:
        """Add a reading, and return the rates.

        Args:
            at: the time in seconds, not before the previous reading.
            count: the value of the counter.
        """
        if not self._marks:
            self._began, self._last = at, (0.0, count)
            self._marks.append(count)
            return Rate()
        before, old = self._last
        now = max(at - self._began, before)
        for second in range(max(int(before), int(now) - SECONDS - 1) + 1, int(now) + 1):
            self._marks.append(old + (count - old) * (second - before) / (now - before))
        self._last = now, count
        return self._rate()

    def _rate(self) -> Rate:
        now, count = self._last
        newest, back = int(now), min(RECENT, len(self._marks) - 1)
        recent, whole = now - (newest - back), now - (newest - len(self._marks) + 1)
        if whole < 1:
            return Rate()
        return Rate(
            now=(count - self._marks[-1 - back]) / recent,
            mean=(count - self._marks[0]) / whole,
            seconds=whole,
            history=tuple(later - earlier for earlier, later in pairwise(self._marks)),
        )
