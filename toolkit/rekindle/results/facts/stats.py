"""The counters of a session as cards."""

from dataclasses import asdict, astuple

from rekindle import markup
from rekindle.core.scheduler import stats
from rekindle.core.scheduler.stats import prompt_sources, rows


class SchedulerStats(stats.SchedulerStats):
    __doc__ = stats.SchedulerStats.__doc__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the counters, also with a scheduler's own, without a card."""
        return isinstance(other, stats.SchedulerStats) and astuple(self) == astuple(other)

    __hash__ = stats.SchedulerStats.__hash__

    @classmethod
    def of(cls, counters: stats.SchedulerStats) -> "SchedulerStats":
        """Return the counters of a scheduler with their card."""
        return cls(**asdict(counters))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        table = markup.table((name, f"{count:,}") for name, count in rows(self))
        return markup.bundle(repr(self), markup.card("SchedulerStats", "", prompt_shares(self), table))


class Stats(stats.Stats):
    __doc__ = stats.Stats.__doc__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the counters, also with an engine's own, without a card."""
        return isinstance(other, stats.Stats) and astuple(self) == astuple(other)

    __hash__ = stats.Stats.__hash__

    @classmethod
    def of(cls, counters: stats.Stats) -> "Stats":
        """Return the counters of an engine with their card, and with one for each lane."""
        return cls(
            SchedulerStats.of(counters.scheduler),
            counters.programs,
            counters.loads,
            counters.compilations,
            counters.unexpected_compilations,
            tuple(map(SchedulerStats.of, counters.lanes)),
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        if len(self.lanes) > 1:
            head, *lines = self.by_lane()
            table = markup.table(lines, head)
        else:
            table = markup.table((name, f"{count:,}") for name, count in rows(self))
        return markup.bundle(repr(self), markup.card("Stats", "", prompt_shares(self.scheduler), table))


def prompt_shares(counters: stats.SchedulerStats) -> str:
    """Return the sources of prompt tokens as HTML; an empty string before the first prompt."""
    shares = markup.shares(prompt_sources(counters), "token")
    return markup.note("tokens of prompts, by where they were found") + shares if shares else ""
