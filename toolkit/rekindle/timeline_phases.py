"""What a request did in seconds, one thing after the other."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from rekindle.timeline import Course, Timeline

Doing = Literal["queued", "prefill", "decode", "preempted"]


class Phase(NamedTuple):
    """Seconds since the trace began in which a request did one thing."""

    doing: Doing
    began: float
    ended: float


def phases(course: Course, timeline: Timeline, now: float) -> Iterator[Phase]:
    """What it did, from when it was seen first to its end, or until `now`; they follow each other without a gap."""
    end = course.at.get("ended", now)
    changes = list(_changes(course, timeline))
    if not changes:
        return
    cursor = changes[0][1]
    for (doing, _), after in zip(changes, [*(at for _, at in changes[1:]), end], strict=True):
        until = min(max(cursor, after), end)
        if until > cursor:
            yield Phase(doing, cursor, until)
            cursor = until


def _changes(course: Course, timeline: Timeline) -> Iterator[tuple[Doing, float]]:
    """What it did, and from when on."""
    if course.joined is not None:
        yield "queued", course.at.get("joined", 0.0)
    doing: Doing = "queued"
    lost = list(course.lost)
    for number, cell in course.cells.items():
        tick = timeline.ticks[number]
        while lost and lost[0] <= number:
            yield "preempted", timeline.ticks[lost.pop(0)].planned
            doing = "preempted"
        wanted: Doing = "prefill" if cell.prefill else "decode"
        if wanted != doing:
            yield wanted, tick.planned
            doing = wanted
        if cell.prefill and cell.samples and tick.ended is not None:
            yield "decode", tick.ended
            doing = "decode"
    for number in lost:
        yield "preempted", timeline.ticks[number].planned
