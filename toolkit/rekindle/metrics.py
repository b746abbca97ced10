"""Counters that mean what their names say, as frozen snapshots."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What the scheduler has done and holds.

    Attributes:
        waiting, running: requests now in the queue, and now with a slot.
        pages, free_pages: pages in the pool (without the null page), and those that nobody holds.
        ended: requests that ended, for any reason.
        ticks: plans made.
        computed_tokens: prompt tokens computed, those computed again after a preemption included.
        generated_tokens: tokens handed to requests; surplus ones are not counted.
        preemptions: times that a request gave its pages back to start again later.
    """

    waiting: int = 0
    running: int = 0
    pages: int = 0
    free_pages: int = 0
    ended: int = 0
    ticks: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of a session, from `session.stats`.

    Attributes:
        scheduler: see `SchedulerStats`.
        programs: compiled programs that are held.
        compilations: programs compiled since the session began to open.
        compilations_after_open: those of them compiled after `open` returned; 0 in ahead-of-time mode.
    """

    scheduler: SchedulerStats
    programs: int
    compilations: int
    compilations_after_open: int
