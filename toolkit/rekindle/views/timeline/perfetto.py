"""A trace as a file for ui.perfetto.dev, in the trace event format of Chrome.

Of that format it uses complete events ("X"), instants ("i"), counters ("C") and the names and order of tracks ("M").
The slices of one track never overlap, which the format forbids unless they nest. Times are whole microseconds, so that
a reader that rounds cannot make them overlap.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from rekindle.markup import counted
from rekindle.views.records import Seen
from rekindle.views.timeline.timeline import Course, Timeline
from rekindle.views.timeline.words import named, summary

Event = dict[str, object]

ACTORS, DEVICE, REQUESTS = 1, 2, 3
"""The "processes" that tracks are grouped by."""
FIRST_TRACK = 10
"""A track whose number is that of its process would pass for its main thread, and number 0 for an idle one."""


Doing = Literal["queued", "prefill", "decode", "preempted"]


class Phase(NamedTuple):
    """Seconds since the trace began in which a request did one thing."""

    doing: Doing
    began: float
    ended: float


def as_json(records: Sequence[Seen], now: float, dropped: int) -> bytes:
    """The whole file.

    Args:
        now: seconds since the trace began.
        dropped: messages that are not among the records any more.
    """
    timeline = Timeline(records)
    groups = {ACTORS: "actors", DEVICE: "device", REQUESTS: "requests"}
    events = [_named("process", pid, None, name) for pid, name in groups.items()]
    events += [_ordered("process", pid, None, pid) for pid in groups]
    tracks = iter(range(FIRST_TRACK, FIRST_TRACK + len(records) + len(timeline.courses) + 1))
    events += [*_actors(records, tracks), *_ticks(timeline, next(tracks)), *_counters(timeline)]
    events += _requests(timeline, now, tracks)
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"by": "rekindle", "dropped": dropped}}
    return json.dumps(_whole_characters(whole), allow_nan=False, separators=(",", ":")).encode()


def _actors(records: Sequence[Seen], tracks: Iterator[int]) -> Iterator[Event]:
    """A track for each actor, and on it a slice for each message that it took."""
    by_actor = {actor: next(tracks) for actor in dict.fromkeys(record.actor for record in records)}
    for actor, track in by_actor.items():
        yield from _track(ACTORS, track, actor)
    for record in records:
        args: Event = {"took": record.words}
        if record.said:
            args["said"] = "\n".join(record.said)
        yield _slice(ACTORS, by_actor[record.actor], record.kind, record.began, record.ended, args)


def _ticks(timeline: Timeline, track: int) -> Iterator[Event]:
    """A slice for each tick, from when the device could begin with it until its tokens were read."""
    yield from _track(DEVICE, track, "ticks")
    for tick in timeline.ticks.values():
        if tick.began is None or tick.ended is None:
            continue
        chunks = ", ".join(
            f"{counted(part.tokens, 'token')} of {part.request} from {part.start}" for part in tick.chunks
        )
        args: Event = {"prefill": chunks or "nothing", "decode": ", ".join(map(str, tick.rows)) or "nothing"}
        if tick.onloaded:
            args["pages copied in"] = tick.onloaded
        yield _slice(DEVICE, track, f"tick {tick.number}", tick.began, tick.ended, args)


def _counters(timeline: Timeline) -> Iterator[Event]:
    """How many requests ran and waited in each tick, of those that the trace knows."""
    numbers = list(timeline.ticks)
    # By how much a count is more than in the tick before: a request that waits for long costs no more than another.
    more = {name: [0] * (len(numbers) + 1) for name in ("running", "waiting")}
    for course in timeline.courses.values():
        for kind, first, after in course.stretches():
            if kind != "surplus":
                changes = more["waiting" if kind in {"queued", "preempted"} else "running"]
                changes[bisect_left(numbers, first)] += 1
                changes[bisect_left(numbers, after)] -= 1
    counts = {name: list(accumulate(changes)) for name, changes in more.items()}
    for place, tick in enumerate(timeline.ticks.values()):
        yield from (_counter(name, tick.planned, each[place]) for name, each in counts.items())
    if timeline.ticks and timeline.courses and all(course.how for course in timeline.courses.values()):
        last = max(course.at["ended"] for course in timeline.courses.values())
        yield from (_counter(name, last, 0) for name in ("running", "waiting"))


def _requests(timeline: Timeline, now: float, tracks: Iterator[int]) -> Iterator[Event]:
    """A track for each request: queued, prefill, decode, and preempted where it lost its pages.

    One that was turned away has but an instant there, that of its end.
    """
    for course in sorted(timeline.courses.values(), key=lambda course: course.request):
        track = next(tracks)
        yield from _track(REQUESTS, track, named(course))
        args: Event = {"prompt + new tokens, end": summary(course)}
        spans = list(phases(course, timeline, now))
        for phase in spans:
            yield _slice(REQUESTS, track, phase.doing, phase.began, phase.ended, args)
        if course.how and not spans:
            yield _instant(REQUESTS, track, course.how, course.at["ended"], args | {"why": course.why})


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


# Events


def _slice(pid: int, tid: int, name: str, began: float, ended: float, args: Event) -> Event:
    # What was under way when the trace began is shown from there on.
    start, end = _micro(began), _micro(ended)
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args}


def _instant(pid: int, tid: int, name: str, at: float, args: Event) -> Event:
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": _micro(at), "args": args}


def _counter(name: str, at: float, count: int) -> Event:
    return {"ph": "C", "name": name, "pid": DEVICE, "ts": _micro(at), "args": {"requests": count}}


def _track(pid: int, tid: int, name: str) -> tuple[Event, Event]:
    return _named("thread", pid, tid, name), _ordered("thread", pid, tid, tid)


def _named(what: str, pid: int, tid: int | None, name: str) -> Event:
    return _metadata(f"{what}_name", pid, tid, {"name": name})


def _ordered(what: str, pid: int, tid: int | None, place: int) -> Event:
    return _metadata(f"{what}_sort_index", pid, tid, {"sort_index": place})


def _metadata(name: str, pid: int, tid: int | None, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "args": args} | ({} if tid is None else {"tid": tid})


def _micro(seconds: float) -> int:
    return max(0, int(seconds * 1e6))


def _whole_characters(thing: object) -> object:
    """The same without halves of characters, which JSON could spell and a reader might refuse."""
    match thing:
        case str():
            return thing.encode("utf-8", "backslashreplace").decode()
        case Mapping():
            return {_whole_characters(name): _whole_characters(value) for name, value in thing.items()}
        case list():
            return [_whole_characters(value) for value in thing]
    return thing
