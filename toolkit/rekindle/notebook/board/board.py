"""Snapshot of the dashboard, as plain data and as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from rekindle.assembly.stats import Stats, cached_suffix, prompt_sources
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.words import one_line, percent, quantity, seconds
from rekindle.notebook.board.rates import Rate
from rekindle.results.facts.figures import Standing
from rekindle.results.facts.stats import draft_facts

COLUMNS = ("request", "state", "prompt", "generated", "age")
LONGEST_STATE = 400
"""The maximum number of characters of an engine's state; a compiler's error can fill pages."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an engine at one moment.

    Attributes:
        name: the name of the model, as passed by the user.
        dtype: the dtype of the computation, and the devices if there are several.
        state: "running", "paused", the tick of a stuck engine, or the reason for its end.
        has_ended: True after the end of the engine.
        stats: the counters of `session.stats`.
        slots: the value of `max_running`.
        first_tokens: the time to first token of each request with a first token in the last minute, in seconds, latest
            last.
        ready_programs, total_programs: the number of ready programs, and of all programs to precompile.
        restored_pages: the number of cached pages restored from earlier sessions.
        requests: the oldest unfinished requests, by id.
        more: the number of unfinished requests beyond `requests`.
    """

    name: str
    dtype: str
    state: str
    has_ended: bool
    stats: Stats
    slots: int
    first_tokens: tuple[float, ...]
    ready_programs: int
    total_programs: int
    restored_pages: int
    requests: Mapping[int, Standing]
    more: int


class BoardSource(Protocol):
    """The engine behind a dashboard. All methods are thread-safe and non-blocking."""

    def look(self, at: float) -> Facts:
        """Return the facts at the time `at` of `time.perf_counter`."""

    def pause(self) -> None:
        """Pause the engine.

        Raises:
            SessionError: the engine has ended.
        """

    def resume(self) -> None:
        """Resume the engine.

        Raises:
            SessionError: the engine has ended.
        """

    def cancel(self, request_id: int) -> None:
        """Cancel a request, if it is unfinished."""


@dataclass(frozen=True, slots=True)
class Board:
    """A snapshot of an engine: the facts at one moment, and the recent rate of generated tokens."""

    facts: Facts
    rate: Rate

    def __str__(self) -> str:
        facts, stats = self.facts, self.facts.stats.scheduler
        rows = {
            "slots": f"{stats.running} of {facts.slots} in use, {stats.waiting} waiting",
            "tokens/s": self.speed(),
            "first token": " ".join(self.first_token() or ["none in the last minute"]),
            "pages": f"{free_pages(stats)}{cached_suffix(stats)}; {_elsewhere(stats)}",
            "prompts": _shares(stats),
            "programs": self.programs(),
            "restored": quantity(facts.restored_pages, "cached page"),
        }
        lines = [f"{facts.name} ({facts.dtype}): {self.state()}"]
        lines += [f"{name:13}{text}" for name, text in (rows | self.drafts() | self.lanes()).items()]
        requests = self.requests()
        if requests:
            widths = [max(map(len, column)) for column in zip(COLUMNS, *requests, strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (COLUMNS, *requests)]
        if facts.more:
            lines.append(f"and {facts.more:,} more")
        return "\n".join(lines)

    def state(self) -> str:
        """Return the state of the engine on one line."""
        return one_line(self.facts.state, LONGEST_STATE)

    def speed(self) -> str:
        """Return the rate of generated tokens, as text."""
        if self.rate.now is None or self.rate.mean is None:
            return "measured after the first second"
        return f"{self.rate.now:,.1f} now, {self.rate.mean:,.1f} over the last {self.rate.seconds:.0f} s"

    def first_token(self) -> tuple[str, str] | None:
        """Return the latest time to first token, and the median of the last minute, as texts; None without any."""
        times = self.facts.first_tokens
        if not times:
            return None
        return seconds(times[-1]), f"last, {seconds(median(times))} median of {len(times)}"

    def programs(self) -> str:
        """Return the numbers of ready, loaded and compiled programs, as text."""
        stats, facts = self.facts.stats, self.facts
        ready = f"{facts.ready_programs} of {facts.total_programs} ready"
        return f"{ready}, {stats.loads} loaded, {stats.compilations} compiled"

    def drafts(self) -> dict[str, str]:
        """Return the number of drafts and the share of right tokens under their name; empty before the first one."""
        facts = draft_facts(self.facts.stats.scheduler)
        return {"drafts": ", ".join(facts)} if facts else {}

    def lanes(self) -> dict[str, str]:
        """Return the state of each lane by its name; empty with a single lane."""
        lanes = self.facts.stats.lanes
        if len(lanes) < 2:
            return {}
        slots = self.facts.slots // len(lanes)
        return {
            f"lane {number}": f"{lane.running} of {slots} slots, {lane.waiting:,} waiting; pages {free_pages(lane)}; "
            f"{percent(_cached_fraction(lane))} of its prompts found"
            for number, lane in enumerate(lanes)
        }

    def requests(self) -> list[tuple[str, ...]]:
        """Return a row of `COLUMNS` for each request."""
        return [
            (
                str(request_id),
                now.state,
                "" if now.prompt_tokens is None else f"{now.prompt_tokens:,}",
                f"{now.generated:,}",
                age(now.seconds),
            )
            for request_id, now in self.facts.requests.items()
        ]


def pages(stats: SchedulerStats) -> dict[str, int]:
    """Return the number of device pages by use."""
    return {
        "in use": stats.pages - stats.free_pages,
        "cached": stats.evictable_pages,
        "empty": stats.free_pages - stats.evictable_pages,
    }


def pages_elsewhere(stats: SchedulerStats) -> dict[str, int]:
    """Return the number of pages in the other tiers, by tier."""
    return {"in host memory": stats.host_pages, "on disk": stats.disk_pages}


def free_pages(stats: SchedulerStats) -> str:
    """Return the number of free device pages, as text."""
    return f"{stats.free_pages:,} of {stats.pages:,} free"


def age(seconds: float) -> str:
    """Return a growing duration as text, rounded so that its digits do not flicker."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _cached_fraction(stats: SchedulerStats) -> float:
    """Return the fraction of prompt tokens found in the prefix cache."""
    return 1 - stats.computed_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0


def _elsewhere(stats: SchedulerStats) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in pages_elsewhere(stats).items())


def _shares(stats: SchedulerStats) -> str:
    if not stats.prompt_tokens:
        return "none yet"
    shares = (f"{percent(count / stats.prompt_tokens)} {name}" for name, count in prompt_sources(stats).items())
    return f"{', '.join(shares)} of {quantity(stats.prompt_tokens, 'token')}"
