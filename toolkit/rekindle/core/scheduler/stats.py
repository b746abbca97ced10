"""Counters that mean what their names say, as frozen snapshots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rekindle.core import markup
from rekindle.core.request.figures import CachedTokens


class _Counters:
    """Counters that are shown as a table, with a line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        rows = dict(_rows(self))
        return "\n".join(f"{name:{max(map(len, rows))}}  {count}" for name, count in rows.items())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), markup.card(type(self).__name__, "", self._html()))

    def _html(self) -> str:
        return markup.table((name, f"{count:,}") for name, count in _rows(self))


@dataclass(frozen=True, slots=True, repr=False)
class SchedulerStats(_Counters):
    """The counters of the scheduler: what it has done, and what it has now.

    Attributes:
        waiting, running: requests now in the queue, and now with a slot.
        pages: pages in the pool, without the null page.
        free_pages: those that a request could have now; cached ones that nobody uses are among them.
        cached_pages: those that hold a cached prefix.
        evictable_pages: cached pages that nobody uses; they are among the free ones.
        host_pages: pages with a copy in the host tier.
        disk_pages: pages with a copy on disk; with several groups of devices, those of the one that knows of most.
        device_losses: times that a damaged program took all pages of the device with it, and what ran began again.
        ended: requests that ended, for any reason; one that goes on in another lane has ended in the first.
        ticks: plans made.
        prompt_tokens: tokens in the prompts of started requests: the sum of the next four.
        device_hit_tokens, host_hit_tokens, disk_hit_tokens: those of them found in the prefix cache, by tier.
        computed_tokens: those of them that had to be computed.
        recomputed_tokens: tokens computed once more, of requests that had lost their pages.
        generated_tokens: tokens handed to requests; surplus ones are not counted.
        forced_tokens: those of them that a constraint left no choice of, and that were not generated one by one.
        preemptions: times that a request gave its pages back to start again later.
        moved_pages: pages of prompts that came from the lane that computed them.
    """

    waiting: int = 0
    running: int = 0
    pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    evictable_pages: int = 0
    host_pages: int = 0
    disk_pages: int = 0
    device_losses: int = 0
    ended: int = 0
    ticks: int = 0
    prompt_tokens: int = 0
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    disk_hit_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    moved_pages: int = 0

    def _html(self) -> str:
        return prompt_shares(self) + _Counters._html(self)


def total(lanes: Sequence[SchedulerStats]) -> SchedulerStats:
    """Return the counters of all lanes added up; the pages on disk are those of the lane that knows of most."""
    sums = {field.name: sum(getattr(lane, field.name) for lane in lanes) for field in fields(SchedulerStats)}
    return SchedulerStats(**sums | {"disk_pages": max(lane.disk_pages for lane in lanes)})


@dataclass
class Counts:
    """The counters that only grow, with their names in `SchedulerStats`."""

    ended: int = 0
    ticks: int = 0
    prompt_tokens: int = 0
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    disk_hit_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    moved_pages: int = 0

    def forced(self, tokens: int) -> None:
        """Count tokens that were handed to a request because its constraint leaves no choice."""
        self.generated_tokens += tokens
        self.forced_tokens += tokens

    def admitted(self, known: int, cached: CachedTokens, *, again: bool) -> None:
        """Count the tokens of a request that was just given its pages.

        Args:
            known: its tokens.
            cached: those of them that need not be computed.
            again: whether it had pages before and lost them.
        """
        if again:
            self.recomputed_tokens += known - cached.total
            return
        self.prompt_tokens += known
        self.device_hit_tokens += cached.device
        self.host_hit_tokens += cached.host
        self.disk_hit_tokens += cached.disk
        self.computed_tokens += known - cached.total


@dataclass(frozen=True, slots=True, repr=False)
class Stats(_Counters):
    """The state of a session, from `session.stats`.

    Attributes:
        scheduler: see `SchedulerStats`; with several lanes, all of them together.
        programs: compiled programs that are held.
        loads: programs loaded from the store, since the session began to open.
        compilations: programs compiled since then.
        unexpected_compilations: those of them that should have been ready; 0 unless something is wrong.
        lanes: the counters of each lane.
    """

    scheduler: SchedulerStats
    programs: int
    loads: int
    compilations: int
    unexpected_compilations: int
    lanes: tuple[SchedulerStats, ...] = ()

    def __repr__(self) -> str:
        if len(self.lanes) < 2:
            return _Counters.__repr__(self)
        head, *rows = self._by_lane()
        wide = max(len(name) for name, *_ in rows)
        widths = [max(map(len, column)) for column in zip(head[1:], *(row[1:] for row in rows), strict=True)]
        return "\n".join(
            f"{name:{wide}}  " + "  ".join(map(str.rjust, counts, widths)) for name, *counts in (head, *rows)
        ).replace(" \n", "\n")

    def _html(self) -> str:
        table = _Counters._html(self)
        if len(self.lanes) > 1:
            head, *rows = self._by_lane()
            table = markup.table(rows, head)
        return prompt_shares(self.scheduler) + table

    def _by_lane(self) -> Iterator[tuple[str, ...]]:
        """Yield a head, and each counter of all lanes and of each."""
        yield "", "all", *(f"lane {number}" for number in range(len(self.lanes)))
        lanes = [dict(_rows(lane)) for lane in self.lanes]
        for name, count in _rows(self):
            own = [lane.get(name.removeprefix("scheduler.")) for lane in lanes] if "." in name else [None] * len(lanes)
            yield name, f"{count:,}", *("" if each is None else f"{each:,}" for each in own)


def prompt_shares(stats: SchedulerStats) -> str:
    """Return where the tokens of prompts came from, as HTML; nothing before the first prompt."""
    shares = markup.shares(found(stats), "token")
    return f"<div>tokens of prompts, by where they were found:</div>{shares}" if shares else ""


def of_them_cached(stats: SchedulerStats) -> str:
    """Say how many of the free pages hold a cached prefix, after how many are free; nothing if none does."""
    return f", {stats.evictable_pages:,} of them cached" if stats.evictable_pages else ""


def found(stats: SchedulerStats) -> dict[str, int]:
    """Return the tokens of prompts by where they were found."""
    return {
        "device": stats.device_hit_tokens,
        "host": stats.host_hit_tokens,
        "disk": stats.disk_hit_tokens,
        "computed": stats.computed_tokens,
    }


def _rows(counters: Any) -> Iterator[tuple[str, int]]:
    for field in fields(counters):
        value = getattr(counters, field.name)
        if isinstance(value, _Counters):
            yield from ((f"{field.name}.{name}", count) for name, count in _rows(value))
        elif not isinstance(value, tuple):
            yield field.name, value
