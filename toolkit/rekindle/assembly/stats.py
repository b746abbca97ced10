"""CounterTable of an engine: of its scheduler, by lane, and of its programs."""

from collections.abc import Iterator
from dataclasses import dataclass

from rekindle.core.scheduler.stats import CounterTable, SchedulerStats, rows


@dataclass(frozen=True, slots=True, repr=False)
class Stats(CounterTable):
    """The state of a session, from `session.stats`.

    Attributes:
        scheduler: see `SchedulerStats`; with several lanes, the sum over lanes.
        programs: compiled programs in memory.
        loads: programs loaded from the store, since the session began to open.
        compilations: programs compiled since then.
        unexpected_compilations: compilations of programs expected to be ready; 0 unless something is wrong.
        lanes: the counters of each lane.
        kernels: the kernels in use, and the reason unless they are those of the platform; empty if unknown.
    """

    scheduler: SchedulerStats
    programs: int
    loads: int
    compilations: int
    unexpected_compilations: int
    lanes: tuple[SchedulerStats, ...] = ()
    kernels: str = ""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self._counters(), self.kernels)))

    def _counters(self) -> str:
        if len(self.lanes) < 2:
            return CounterTable.__repr__(self)
        head, *lines = self.by_lane()
        wide = max(len(name) for name, *_ in lines)
        widths = [max(map(len, column)) for column in zip(head[1:], *(row[1:] for row in lines), strict=True)]
        return "\n".join(
            f"{name:{wide}}  " + "  ".join(map(str.rjust, counts, widths)) for name, *counts in (head, *lines)
        ).replace(" \n", "\n")

    def by_lane(self) -> Iterator[tuple[str, ...]]:
        """Yield a header row, and a row for each counter: its name, the total, the value of each lane."""
        yield "", "all", *(f"lane {number}" for number in range(len(self.lanes)))
        lanes = [dict(rows(lane)) for lane in self.lanes]
        for name, count in rows(self):
            scheduled = name.removeprefix("scheduler.")
            own = [None if scheduled == name else lane.get(scheduled, 0) for lane in lanes]
            yield name, f"{count:,}", *("" if each is None else f"{each:,}" for each in own)


def cached_suffix(stats: SchedulerStats) -> str:
    """Return the number of cached pages among the free ones as a suffix; an empty string for none."""
    return f", {stats.evictable_pages:,} of them cached" if stats.evictable_pages else ""


def prompt_sources(stats: SchedulerStats) -> dict[str, int]:
    """Return the number of prompt tokens by source: a cache tier, or computed."""
    return {
        "device": stats.device_hit_tokens,
        "host": stats.host_hit_tokens,
        "disk": stats.disk_hit_tokens,
        "computed": stats.computed_tokens,
    }
