"""Choice of the lengths of drafts, by measured times of ticks and measured chances of tokens."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Final

from rekindle.core.buckets import smallest

LEAST_GAIN: Final = 1.05
"""Smallest expected gain of a draft, as a factor of the tokens per second without it."""
MATCHES: Final = (3, 4, 6, 10)
"""First match length of each class after the first. The longer a match, the likelier the next token is the same."""
FIRST_CHANCES: Final = (0.3, 0.5, 0.6, 0.75, 0.9)
"""Chances by class until there are measurements, roughly those of answers of SmolLM2."""
FIRST_WEIGHT: Final = 8.0
"""Weight of the first chances, in tokens."""
FADING: Final = 0.98
"""Factor of the weight of all earlier tokens at each new one."""
TIME_WEIGHT: Final = 0.2
"""Weight of a new measurement in the moving mean of a time."""


MOST_OF_MEAN: Final = 2.0
"""Bound of a measured time, as a multiple of the mean: a machine may be busy with something else for once."""
DOUBT: Final = 0.005
"""Share by which the means of other sizes approach that of a measured tick, so that an old one is measured again."""


@dataclass(slots=True)
class Chances:
    """The chance that the token after a match is the same again, by class of match length.

    Attributes:
        prior: the chances of all requests, until there are measurements of one; None for the first chances.
    """

    prior: "Chances | None" = None
    _tokens: list[float] = field(default_factory=lambda: [0.0] * len(FIRST_CHANCES))
    _same: list[float] = field(default_factory=lambda: [0.0] * len(FIRST_CHANCES))

    def of(self, match: int) -> float:
        """Return the chance after a match of this length."""
        each = bisect_right(MATCHES, match)
        prior = FIRST_CHANCES[each] if self.prior is None else self.prior.of(match)
        return (self._same[each] + FIRST_WEIGHT * prior) / (self._tokens[each] + FIRST_WEIGHT)

    def add(self, match: int, *, same: bool) -> None:
        """Add a token after a match of this length."""
        each = bisect_right(MATCHES, match)
        self._tokens[each] = FADING * self._tokens[each] + 1
        self._same[each] = FADING * self._same[each] + same
        if self.prior is not None:
            self.prior.add(match, same=same)

    def of_all(self, match: int, count: int) -> tuple[float, ...]:
        """Return the chance that the first token after a match is the same, the first two, and so on up to `count`."""
        return tuple(accumulate((self.of(match + place) for place in range(count)), mul))


class Times:
    """Moving means of times, in seconds.

    Attributes:
        gap: the time between a tick and the next one, planned after the first has ended.
    """

    def __init__(self) -> None:
        self._ticks: dict[int, float | None] = {}
        self.gap = 0.0

    def add(self, rows: int, seconds: float, gap: float) -> None:
        """Add a tick without prompts. The first one of a size does not count: a new program is slow.

        Args:
            rows: the number of rows with padding.
            seconds: the time of the tick.
            gap: the time since the tick before; 0 for a tick planned earlier. A long gap is a pause without requests.
        """
        if rows not in self._ticks:
            self._ticks[rows] = None
            return
        mean = self._ticks[rows] or seconds
        self._ticks[rows] = _mean(mean, min(seconds, MOST_OF_MEAN * mean))
        for other, time in self._ticks.items():
            if other != rows and time is not None:
                self._ticks[other] = time + DOUBT * (mean - time)
        if 0 < gap < seconds:
            self.gap = _mean(self.gap or gap, gap)

    def of(self, rows: int) -> float | None:
        """Return the time of a tick, or of one with fewer rows until it is measured; None without measurements."""
        times = {size: time for size, time in self._ticks.items() if size <= rows and time is not None}
        return times[max(times)] if times else None


def best_room(
    rows: int, chances: Sequence[float], times: Times, sizes: Sequence[int], unready: Collection[int] = ()
) -> tuple[int, float]:
    """Return the number of draft tokens with the most expected tokens per second, and the seconds saved in a tick.

    Args:
        rows: the number of requests in the tick.
        chances: the chance of each draft token to be right, the largest first.
        times: the measured times.
        sizes: the sizes of decode buckets, ascending.
        unready: sizes whose programs are not ready yet.

    Returns:
        0 and 0.0 if no draft pays.
    """
    least = smallest(sizes, rows)
    base = times.of(least)
    if base is None:
        return 0, 0.0
    best, speed = (0, 0.0), LEAST_GAIN * rows / base
    for size in sizes:
        room, seconds = min(size - rows, len(chances)), times.of(size)
        if room > 0 and seconds is not None and (size == least or size not in unready):
            expected = rows + sum(chances[:room])
            if expected / seconds > speed:
                best, speed = (room, base * expected / rows - seconds), expected / seconds
    return best


def counts_of(offers: Sequence[Sequence[float]], room: int) -> list[int]:
    """Return the length of each draft: the likeliest tokens of all drafts fill the room.

    Args:
        offers: for each draft, the chance that its first token is right, the first two, and so on.
        room: the number of tokens.
    """
    likely = sorted(((chance, number) for number, offer in enumerate(offers) for chance in offer), reverse=True)
    owners = [number for _, number in likely[:room]]
    return [owners.count(number) for number in range(len(offers))]


def _mean(mean: float, seconds: float) -> float:
    return mean + TIME_WEIGHT * (seconds - mean)
