"""Log lines of prefill and decode: `logging.getLogger("rekindle.ticks").setLevel(logging.INFO)` turns them on."""

import logging
from collections.abc import Callable

from rekindle import markup
from rekindle.engine.handled import Handled
from rekindle.messages import Plan, Started
from rekindle.scheduler.stats import SchedulerStats

LOG = logging.getLogger("rekindle.ticks")
EVERY = 40
"""Ticks with decode rows between two lines on decoding; there is one more when the engine runs out of work."""


class TickLog:
    """Watches an engine: what prefills compute is logged as they are planned, the speed of decoding now and then.

    Args:
        stats: those of the scheduler, now.
    """

    def __init__(self, stats: Callable[[], SchedulerStats]):
        self._stats = stats
        self._ticks = 0
        self._since: tuple[float, int] | None = None  # when decoding began to be counted, and the tokens until then

    def __call__(self, handled: Handled) -> None:
        """See `rekindle.engine.handled.See`."""
        if handled.actor != "scheduler" or not LOG.isEnabledFor(logging.INFO):
            return
        plans = [each for each in handled.said if isinstance(each, Plan)]
        stats = self._stats()
        if any(plan.chunks for plan in plans):
            self._prefill(plans, [each for each in handled.said if isinstance(each, Started)], stats)
        if self._since is None and plans:
            self._since = handled.ended, stats.generated_tokens
        self._ticks += sum(bool(plan.rows) for plan in plans)
        idle = not stats.running and not stats.waiting
        if self._since is not None and (self._ticks >= EVERY or idle):
            self._decode(handled.ended, *self._since, stats)
            self._since = None if idle else (handled.ended, stats.generated_tokens)
            self._ticks = 0

    def _prefill(self, plans: list[Plan], started: list[Started], stats: SchedulerStats) -> None:
        computed = sum(len(chunk.tokens) for plan in plans for chunk in plan.chunks)
        cached = sum(each.cached.total for each in started)
        new = markup.counted(len(started), "new request")
        LOG.info("prefill: %s, %s computed, %s cached; %s", new, _tokens(computed), f"{cached:,}", _held(stats))

    def _decode(self, now: float, since: float, before: int, stats: SchedulerStats) -> None:
        generated = stats.generated_tokens - before
        if generated:
            rate = generated / (now - since)
            LOG.info("decode: %s generated, %s tokens/s; %s", _tokens(generated), f"{rate:,.1f}", _held(stats))


def _tokens(count: int) -> str:
    return markup.counted(count, "token")


def _held(stats: SchedulerStats) -> str:
    used = f"{stats.pages - stats.free_pages:,} of {markup.counted(stats.pages, 'page')} in use"
    return f"{stats.running:,} running, {stats.waiting:,} waiting, {used}"
