"""Counters of the scheduler, and their frozen snapshots."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rekindle.core.request.figures import CachedTokens


class CounterTable:
    """Counters shown as a table, with a line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        counts = dict(rows(self))
        return "\n".join(f"{name:{max(map(len, counts))}}  {count}" for name, count in counts.items())


@dataclass(frozen=True, slots=True, repr=False)
class SchedulerStats(CounterTable):
    """The counters of the scheduler: totals since the start, and the current state.

    Attributes:
        waiting, running: requests now in the queue, and now with a slot.
        pages: pages in the pool, without the null page.
        free_pages: pages available to a request now, including evictable ones.
        cached_pages: pages with a cached prefix.
        evictable_pages: cached pages not in use by any request; part of `free_pages`.
        host_pages: pages with a copy in the host tier.
        host_states: states with a copy in the host tier, for a model whose layers keep a state.
        disk_pages: pages with a copy on disk; with several groups of devices, the largest number of a group.
        disk_states: states with a copy on disk, counted as `disk_pages`.
        device_losses: losses of all pages on the device through a damaged program or for want of memory; running
            requests restarted.
        ended: requests ended for any reason, also of `session.bench()`; one continued in another lane, in both.
        ticks: plans made.
        prompt_tokens: tokens in the prompts of started requests, except `session.bench()`: the sum of the next four.
        device_hit_tokens, host_hit_tokens, disk_hit_tokens: prompt tokens found in the prefix cache, by tier.
        computed_tokens: prompt tokens computed.
        recomputed_tokens: tokens computed again for requests after a preemption.
        generated_tokens: tokens given to requests, without surplus, also to those of `session.bench()`.
        forced_tokens: generated tokens forced by a constraint, and not sampled one by one.
        preemptions: times a request gave its pages back, to start again later.
        stateless_tokens: tokens found with their pages, and computed again because no state after them was found.
        moved_pages: pages of prompts received from the lane with the computed prompt.
        drafts: verified drafts, guesses of the next tokens of a request.
        drafted_tokens: tokens of these drafts.
        accepted_tokens: right tokens of these drafts.
        accepted_at: right tokens by place in the draft, from 1.
        undrafted: requests whose drafts are ruled out, by reason.
        pictures: images in the prompts of started requests.
        embedded_pictures: images embedded by the tower; the others were in the prefix cache or in its buffer.
    """

    waiting: int = 0
    running: int = 0
    pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    evictable_pages: int = 0
    host_pages: int = 0
    host_states: int = 0
    disk_pages: int = 0
    disk_states: int = 0
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
    stateless_tokens: int = 0
    moved_pages: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: Mapping[int, int] = field(default_factory=dict, hash=False)
    undrafted: Mapping[str, int] = field(default_factory=dict, hash=False)
    pictures: int = 0
    embedded_pictures: int = 0


def total(lanes: Sequence[SchedulerStats]) -> SchedulerStats:
    """Return the sum of all lanes' counters; `disk_pages` and `disk_states` are the largest of a lane."""
    values = {field.name: [getattr(lane, field.name) for lane in lanes] for field in fields(SchedulerStats)}
    sums: dict[str, Any] = {
        name: dict(sum(map(Counter, each), Counter())) if name in ("accepted_at", "undrafted") else sum(each)
        for name, each in values.items()
    }
    disk = {name: max(getattr(lane, name) for lane in lanes) for name in ("disk_pages", "disk_states")}
    return SchedulerStats(**sums | disk)


@dataclass
class Counts:
    """The totals among the counters of `SchedulerStats`, under the same names; the scheduler adds to them."""

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
    stateless_tokens: int = 0
    moved_pages: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: Mapping[int, int] = field(default_factory=dict)
    undrafted: Mapping[str, int] = field(default_factory=dict)
    pictures: int = 0
    embedded_pictures: int = 0

    def add_draft(self, drafted: int, accepted: int) -> None:
        """Count a verified draft."""
        self.drafts += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        more = {place: self.accepted_at.get(place, 0) + 1 for place in range(1, accepted + 1)}
        self.accepted_at = {**self.accepted_at, **more}  # a new one, as snapshots share it

    def add_undrafted(self, obstacle: str) -> None:
        """Count a request whose drafts are ruled out."""
        self.undrafted = {**self.undrafted, obstacle: self.undrafted.get(obstacle, 0) + 1}

    def add_forced(self, tokens: int) -> None:
        """Count tokens forced by the constraint of a request."""
        self.generated_tokens += tokens
        self.forced_tokens += tokens

    def add_admitted(self, tokens: int, cached: CachedTokens, *, again: bool) -> None:
        """Count the tokens of a newly admitted request.

        Args:
            tokens: all its tokens.
            cached: its cached tokens, by tier.
            again: whether the request was admitted before and preempted.
        """
        if again:
            self.recomputed_tokens += tokens - cached.total
            return
        self.prompt_tokens += tokens
        self.device_hit_tokens += cached.device
        self.host_hit_tokens += cached.host
        self.disk_hit_tokens += cached.disk
        self.computed_tokens += tokens - cached.total


def rows(counters: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the value of each counter, those of the scheduler within the others' too."""
    for each in fields(counters):
        value = getattr(counters, each.name)
        if isinstance(value, CounterTable):
            yield from ((f"{each.name}.{name}", count) for name, count in rows(value))
        elif isinstance(value, Mapping):
            yield from ((f"{each.name}.{key}", count) for key, count in value.items())
        elif not isinstance(value, tuple | str):
            yield each.name, value
