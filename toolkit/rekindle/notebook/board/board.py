"""What the dashboard shows at one moment, as plain data and as lines of text."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from rekindle.core import markup
from rekindle.core.request.figures import Standing
from rekindle.core.scheduler.stats import SchedulerStats, Stats, cached_suffix, prompt_sources
from rekindle.notebook.board.rates import Rate

COLUMNS = ("request", "state", "prompt", "generated", "age")
LONGEST_STATE = 400
"""How many characters of an engine's state are shown: why it failed may be pages of a compiler's words."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an engine at one moment.

    Attributes:
        name: the model as its user calls it.
        dtype: what it computes in, and on which devices if there are several.
        state: "running", "paused", the tick that it is stuck in, or why it has ended.
        ended: whether the engine has ended.
        stats: see `session.stats`.
        slots: `max_running`.
        first_tokens: seconds to each first token that came in the last minute, the latest last.
        ready, wanted: of the programs that are made ahead of need, how many are ready, and how many there are to be.
        restored: cached pages of earlier sessions that were found.
        requests: the oldest of the requests that have not ended, by id.
        more: how many other requests have not ended.
    """

    name: str
    dtype: str
    state: str
    ended: bool
    stats: Stats
    slots: int
    first_tokens: tuple[float, ...]
    ready: int
    wanted: int
    restored: int
    requests: Mapping[int, Standing]
    more: int


class Source(Protocol):
    """An engine that a dashboard follows. Any thread may call any method; none of them waits."""

    def look(self, at: float) -> Facts:
        """Return the facts at this time of `time.perf_counter`."""

    def pause(self) -> None:
        """Have the engine pause.

        Raises:
            SessionError: the engine has ended.
        """

    def resume(self) -> None:
        """Have the engine go on; raises as `pause`."""

    def cancel(self, request_id: int) -> None:
        """End a request, if it has not ended."""


@dataclass(frozen=True, slots=True)
class Board:
    """A snapshot of an engine: the facts at one moment, and how fast tokens were generated until then."""

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
            "restored": markup.quantity(facts.restored, "cached page"),
        }
        lines = [f"{facts.name} ({facts.dtype}): {self.state()}"]
        lines += [f"{name:13}{said}" for name, said in (rows | self.lanes()).items()]
        requests = self.requests()
        if requests:
            widths = [max(map(len, column)) for column in zip(COLUMNS, *requests, strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (COLUMNS, *requests)]
        if facts.more:
            lines.append(f"and {facts.more:,} more")
        return "\n".join(lines)

    def state(self) -> str:
        """Say on one line whether the engine runs, or why not."""
        return markup.one_line(self.facts.state, LONGEST_STATE)

    def speed(self) -> str:
        """Say how many tokens are generated per second."""
        if self.rate.now is None or self.rate.mean is None:
            return "measured after the first second"
        return f"{self.rate.now:,.1f} now, {self.rate.mean:,.1f} over the last {self.rate.seconds:.0f} s"

    def first_token(self) -> tuple[str, str] | None:
        """Say how long a request waited for the latest first token, and how long others waited for theirs."""
        times = self.facts.first_tokens
        if not times:
            return None
        return markup.seconds(times[-1]), f"last, {markup.seconds(median(times))} median of {len(times)}"

    def programs(self) -> str:
        """Say how many programs are ready, and where they came from."""
        stats, facts = self.facts.stats, self.facts
        return f"{facts.ready} of {facts.wanted} ready, {stats.loads} loaded, {stats.compilations} compiled"

    def lanes(self) -> dict[str, str]:
        """Say how each lane stands, by its name; nothing where there is one lane."""
        lanes = self.facts.stats.lanes
        if len(lanes) < 2:
            return {}
        slots = self.facts.slots // len(lanes)
        return {
            f"lane {number}": f"{lane.running} of {slots} slots, {lane.waiting:,} waiting; pages {free_pages(lane)}; "
            f"{markup.percent(_found(lane))} of its prompts found"
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
    """Return how many of the device's pages are used for what."""
    return {
        "in use": stats.pages - stats.free_pages,
        "free, cached": stats.evictable_pages,
        "free, empty": stats.free_pages - stats.evictable_pages,
    }


def pages_elsewhere(stats: SchedulerStats) -> dict[str, int]:
    """Return how many pages the other tiers hold."""
    return {"in host memory": stats.host_pages, "on disk": stats.disk_pages}


def free_pages(stats: SchedulerStats) -> str:
    """Say how many of the device's pages a request could have now."""
    return f"{stats.free_pages:,} of {stats.pages:,} free"


def age(seconds: float) -> str:
    """Return a time that goes on in words, without digits that would flicker."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _found(stats: SchedulerStats) -> float:
    """Return the part of the tokens of prompts that was not computed."""
    return 1 - stats.computed_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0


def _elsewhere(stats: SchedulerStats) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in pages_elsewhere(stats).items())


def _shares(stats: SchedulerStats) -> str:
    if not stats.prompt_tokens:
        return "none yet"
    shares = (f"{markup.percent(count / stats.prompt_tokens)} {name}" for name, count in prompt_sources(stats).items())
    return f"{', '.join(shares)} of {markup.quantity(stats.prompt_tokens, 'token')}"
