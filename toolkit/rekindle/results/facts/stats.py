"""The counters of a session as cards."""

from dataclasses import asdict, astuple

from rekindle import markup
from rekindle.assembly import stats as engine_stats
from rekindle.assembly.stats import prompt_sources
from rekindle.core.scheduler import stats
from rekindle.core.scheduler.stats import rows
from rekindle.core.words import percent, quantity


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
        parts = prompt_shares(self), markup.table(_groups(self).items()), markup.folded("all counters", table)
        return markup.bundle(repr(self), markup.card("SchedulerStats", "", *parts))


class Stats(engine_stats.Stats):
    __doc__ = engine_stats.Stats.__doc__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the counters, also with an engine's own, without a card."""
        return isinstance(other, engine_stats.Stats) and astuple(self) == astuple(other)

    __hash__ = engine_stats.Stats.__hash__

    @classmethod
    def of(cls, counters: engine_stats.Stats) -> "Stats":
        """Return the counters of an engine with their card, and with one for each lane."""
        return cls(
            SchedulerStats.of(counters.scheduler),
            counters.programs,
            counters.loads,
            counters.compilations,
            counters.unexpected_compilations,
            tuple(map(SchedulerStats.of, counters.lanes)),
            counters.kernels,
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        if len(self.lanes) > 1:
            head, *lines = self.by_lane()
            table = markup.table(lines, head)
        else:
            table = markup.table((name, f"{count:,}") for name, count in rows(self))
        programs = _joined(
            f"{self.programs:,} in memory",
            f"{self.loads:,} loaded",
            f"{self.compilations:,} compiled",
            _unless_zero(self.unexpected_compilations, "of them unexpectedly"),
        )
        groups = markup.table((_groups(self.scheduler) | {"programs": programs}).items())
        folded = markup.folded("all counters", table)
        parts = prompt_shares(self.scheduler), groups, folded, markup.note(self.kernels)
        return markup.bundle(repr(self), markup.card("Stats", "", *parts))


def prompt_shares(counters: stats.SchedulerStats) -> str:
    """Return the sources of prompt tokens as HTML; an empty string before the first prompt."""
    shares = markup.shares(prompt_sources(counters), "token")
    return markup.note("tokens of prompts, by where they were found") + shares if shares else ""


def draft_facts(counters: stats.SchedulerStats) -> list[str]:
    """Return the number of drafts and the share of right tokens as texts; none before the first draft."""
    if not counters.drafts:
        return []
    right = percent(counters.accepted_tokens / counters.drafted_tokens)
    return [f"{counters.drafts:,} verified", f"{right} of {quantity(counters.drafted_tokens, 'token')} right"]


def _groups(counters: stats.SchedulerStats) -> dict[str, str]:
    """Return the counters as text by group, without groups and rare events that have not occurred."""
    ruled_out = (f"ruled out for {quantity(count, 'request')} by {by}" for by, count in counters.undrafted.items())
    groups = {
        "requests": _joined(
            f"{counters.running:,} running", f"{counters.waiting:,} waiting", f"{counters.ended:,} ended"
        ),
        "tokens": _joined(
            f"{counters.prompt_tokens:,} in prompts",
            f"{counters.generated_tokens:,} generated",
            _unless_zero(counters.forced_tokens, "of them forced by a constraint"),
            _unless_zero(counters.recomputed_tokens, "computed again after a preemption"),
            _unless_zero(counters.stateless_tokens, "cached without a state, and computed again"),
        ),
        "pages": _joined(
            f"{counters.free_pages:,} of {counters.pages:,} free",
            _unless_zero(counters.evictable_pages, "of them cached"),
            _unless_zero(counters.moved_pages, "received from another lane"),
        ),
        "cache": _joined(
            f"{quantity(counters.cached_pages, 'page')} on the device",
            _unless_zero(counters.host_pages, "in host memory"),
            _unless_zero(counters.disk_pages, "on disk"),
            _unless_zero(counters.host_states, "state in host memory", "states in host memory"),
            _unless_zero(counters.disk_states, "state on disk", "states on disk"),
        ),
        "scheduler": _joined(
            quantity(counters.ticks, "tick"),
            _unless_zero(counters.preemptions, "preemption", "preemptions"),
            _unless_zero(counters.device_losses, "loss of all pages", "losses of all pages"),
        ),
        "drafts": _joined(*draft_facts(counters), *ruled_out),
    }
    return {name: text for name, text in groups.items() if text}


def _unless_zero(count: int, what: str, plural: str = "") -> str:
    return quantity(count, what, plural or what) if count else ""


def _joined(*facts: str) -> str:
    return markup.BETWEEN.join(filter(None, facts))
