"""Log lines about prefill and decode, enabled by `logging.getLogger("rekindle.ticks").setLevel(logging.INFO)`."""

import logging
from collections.abc import Callable

from rekindle.core.messages import Plan, Started
from rekindle.core.messages.record import MessageRecord
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.words import quantity

LOG = logging.getLogger("rekindle.ticks")
EVERY = 40
"""The number of ticks with decode rows between two lines about decoding. A last line follows once the lane is idle."""


class TickLog:
    """An observer of messages that logs each planned prefill, and the speed of decoding at intervals.

    Args:
        stats: a function to get the counters of the lane.
        lane: the number of the lane; None with a single lane.
    """

    def __init__(self, stats: Callable[[], SchedulerStats], lane: int | None = None):
        self._stats, self._lane = stats, lane
        self._name = "" if lane is None else f"lane {lane} "
        self._ticks = 0
        self._since: tuple[float, int] | None = None  # start time of the current interval, and tokens before it

    def __call__(self, record: MessageRecord) -> None:
        """See `rekindle.core.messages.record.Observer`."""
        if (record.actor, record.lane) != ("scheduler", self._lane) or not LOG.isEnabledFor(logging.INFO):
            return
        plans = [each for each in record.answers if isinstance(each, Plan)]
        stats = self._stats()
        if any(plan.chunks for plan in plans):
            self._prefill(plans, [each for each in record.answers if isinstance(each, Started)], stats)
        if self._since is None and plans:
            self._since = record.ended, stats.generated_tokens
        self._ticks += len([plan for plan in plans if plan.rows])
        idle = not stats.running and not stats.waiting
        if self._since is not None and (self._ticks >= EVERY or idle):
            self._decode(record.ended, *self._since, stats)
            self._since = None if idle else (record.ended, stats.generated_tokens)
            self._ticks = 0

    def _prefill(self, plans: list[Plan], started: list[Started], stats: SchedulerStats) -> None:
        new = quantity(len(started), "new request")
        computed = quantity(sum(len(chunk.tokens) for plan in plans for chunk in plan.chunks), "token")
        cached = sum(each.cached.total for each in started)
        LOG.info("%sprefill: %s, %s computed, %s cached; %s", self._name, new, computed, f"{cached:,}", _state(stats))

    def _decode(self, now: float, since: float, before: int, stats: SchedulerStats) -> None:
        tokens = stats.generated_tokens - before
        if tokens:
            rate, generated = f"{tokens / (now - since):,.1f}", quantity(tokens, "token")
            LOG.info("%sdecode: %s generated, %s tokens/s; %s", self._name, generated, rate, _state(stats))


def _state(stats: SchedulerStats) -> str:
    used = f"{stats.pages - stats.free_pages:,} of {quantity(stats.pages, 'page')} in use"
    return f"{stats.running:,} running, {stats.waiting:,} waiting, {used}"
