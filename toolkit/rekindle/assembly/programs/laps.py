"""Seconds of the parts of an opening."""

from time import monotonic


class Laps:
    """Seconds of consecutive parts; their sum is the time since the start.

    Attributes:
        seconds: the seconds of each ended part, in order.
    """

    def __init__(self) -> None:
        self.seconds = dict[str, float]()
        self._last = monotonic()

    def end(self, part: str) -> None:
        """End a part; it began at the end of the former part."""
        now = monotonic()
        self.seconds[part] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """The seconds of all parts."""
        return sum(self.seconds.values())
