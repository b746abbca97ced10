"""Tokens per second over the last minute, from a counter that is read now and then."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

SECONDS = 60
"""How far back it is remembered."""
RECENT = 2
"""Whole seconds, with what has begun of the next one, that "now" is the mean of: a single tick would make it jump."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second.

    Attributes:
        now: over the last two or three seconds; None in the first second, of which nothing can be said.
        mean: over the last minute, or as long as it has been looked at; None where `now` is.
        seconds: how long that is.
        history: in each whole second of it, the last one at the end.
    """

    now: float | None = None
    mean: float | None = None
    seconds: float = 0.0
    history: tuple[float, ...] = ()


class Rates:
    """A ring of what the counter was at each whole second since the first look, interpolated between two looks."""

    def __init__(self) -> None:
        self._marks: deque[float] = deque(maxlen=SECONDS + 1)
        self._began = 0.0
        self._last = (0.0, 0.0)

    def look(self, at: float, count: float) -> Rate:
        """The rates at a time in seconds, never before the last look, when the counter is `count`."""
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
