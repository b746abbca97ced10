"""Choice of the number of decode steps in a tick, by the measured time of a step."""

from typing import Final

from rekindle.core.messages import Settled

TICK_SECONDS: Final = 0.01
"""Longest time of a tick with several steps: a new request, or the end of one, waits for at most two of them."""
ALONE_SECONDS, ALONE_STEPS = 0.04, 4
"""Longest time and most steps of a tick for one request alone on a CPU, whose cores then have less to do for Python."""
WEIGHT: Final = 0.2
"""Weight of a new measurement in the moving mean of a time."""
MOST_OF_MEAN: Final = 2.0
"""Bound of a measured time, as a multiple of the mean: a machine may be busy with something else for once."""


class StepCounts:
    """The numbers of steps of ticks, and the measured seconds of a step for each number of rows with padding.

    Args:
        shares_cores: whether the device computes on the cores of the host.
    """

    def __init__(self, *, shares_cores: bool):
        self._shares_cores = shares_cores
        self._seconds: dict[int, float | None] = {}

    def add(self, message: Settled) -> None:
        """Measure a tick without prompts. The first one of a size does not count: a new program is slow."""
        if not message.rows or not message.steps:
            return
        if message.rows not in self._seconds:
            self._seconds[message.rows] = None
            return
        seconds = message.seconds / message.steps
        mean = self._seconds[message.rows] or seconds
        self._seconds[message.rows] = mean + WEIGHT * (min(seconds, MOST_OF_MEAN * mean) - mean)

    def choose(self, rows: int, *, alone: bool) -> int:
        """Return the most steps for a tick, 1 before a measurement.

        Args:
            rows: the number of rows with padding.
            alone: whether one request has the device for itself.
        """
        seconds = self._seconds.get(rows)
        if not seconds:
            return 1
        steps = int(TICK_SECONDS / seconds)
        if alone and self._shares_cores:
            steps = max(steps, min(ALONE_STEPS, int(ALONE_SECONDS / seconds)))
        return max(1, steps)
