"""A trace as a file for ui.perfetto.dev, in the trace event format of Chrome.

The file has complete events ("X"), instants ("i"), counters ("C"), and metadata ("M") that names and orders tracks.
The format forbids that slices of one track overlap unless they nest; here they never overlap. Times are whole
microseconds, so that a reader that rounds cannot make them overlap.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import accumulate, count, groupby, pairwise
from operator import itemgetter
from typing import Literal, NamedTuple

from rekindle.core.markup import quantity
from rekindle.views.records import TraceRecord
from rekindle.views.timeline.lanes import timelines
from rekindle.views.timeline.requests import RequestTimeline, TickWork, Timeline
from rekindle.views.timeline.words import SUMMARY_HEAD, named, summary

Event = dict[str, object]

ACTORS, DEVICE, REQUESTS = 1, 2, 3
"""The "processes" that tracks are grouped by."""
FIRST_TRACK = 10
"""The number of the first track. A track with the number of its process would be taken for the main thread of that, and
number 0 for an idle thread."""


Doing = Literal["queued", "prefill", "decode", "preempted"]


class Phase(NamedTuple):
    """The time in which a request did one thing, in seconds since the trace began."""

    doing: Doing
    began: float
    ended: float


def as_json(records: Sequence[TraceRecord], now: float, dropped: int) -> bytes:
    """Return the whole file.

    Args:
        now: seconds since the trace began.
        dropped: how many messages are no longer among the records.
    """
    lanes, tracks = timelines(records), count(FIRST_TRACK)
    groups = {ACTORS: "actors", DEVICE: "device", REQUESTS: "requests"}
    events = [event for pid, name in groups.items() for event in _metadata("process", {"pid": pid}, name, pid)]
    events += _actors(records, tracks)
    for lane, timeline in lanes:
        events += [*_ticks(timeline, next(tracks), lane), *_counters(timeline, lane)]
    events += _requests([timeline for _, timeline in lanes], now, tracks)
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"by": "rekindle", "dropped": dropped}}
    # A reader may refuse halves of characters, even where JSON spells them: they are spelled as text.
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half[0]):x}", text).encode()


def _actors(records: Sequence[TraceRecord], tracks: Iterator[int]) -> Iterator[Event]:
    """Yield a track for each actor, and on it a slice for each message that the actor took."""
    by_actor = {actor: next(tracks) for actor in dict.fromkeys(record.place for record in records)}
    for actor, track in by_actor.items():
        yield from _track(ACTORS, track, actor)
    for record in records:
        args: Event = {"took": record.words}
        if record.said:
            args["said"] = "\n".join(record.said)
        yield _slice(ACTORS, by_actor[record.place], record.kind, record.began, record.ended, args)


def _ticks(timeline: Timeline, track: int, lane: str) -> Iterator[Event]:
    """Yield a slice for each tick, from when the device could begin with it until its tokens were read."""
    yield from _track(DEVICE, track, _named(lane, "ticks"))
    for tick in timeline.ticks.values():
        if tick.began is None or tick.ended is None:
            continue
        chunks = ", ".join(
            f"{quantity(part.tokens, 'token')} of {part.request} from {part.start}" for part in tick.chunks
        )
        args: Event = {
            "prefill": chunks or "nothing",
            "decode": ", ".join(map(str, dict.fromkeys(tick.rows))) or "nothing",
        }
        if tick.onloaded:
            args["pages copied in"] = tick.onloaded
        yield _slice(DEVICE, track, f"tick {tick.number}", tick.began, tick.ended, args)


def _counters(timeline: Timeline, lane: str) -> Iterator[Event]:
    """Yield how many requests ran and waited in each tick, among those that the trace knows."""
    numbers = list(timeline.ticks)
    # The change of each count from tick to tick, so that a request that waits for long costs no more than another.
    changes = {name: [0] * (len(numbers) + 1) for name in ("running", "waiting")}
    for request_timeline in timeline.request_timelines.values():
        for kind, first, after in request_timeline.intervals():
            if kind != "surplus":
                changed = changes["waiting" if kind in {"queued", "preempted"} else "running"]
                changed[bisect_left(numbers, first)] += 1
                changed[bisect_left(numbers, after)] -= 1
    counts = {name: list(accumulate(changed)) for name, changed in changes.items()}
    for place, tick in enumerate(timeline.ticks.values()):
        yield from (_counter(_named(lane, name), tick.planned, each[place]) for name, each in counts.items())
    if (
        timeline.ticks
        and timeline.request_timelines
        and all(request_timeline.how for request_timeline in timeline.request_timelines.values())
    ):
        last = max(request_timeline.at["ended"] for request_timeline in timeline.request_timelines.values())
        yield from (_counter(_named(lane, name), last, 0) for name in counts)


def _requests(lanes: Sequence[Timeline], now: float, tracks: Iterator[int]) -> Iterator[Event]:
    """Yield a track for each request, and on it its phases; if it was rejected at once, the instant of its end."""
    request_timelines = [
        (request_timeline, timeline) for timeline in lanes for request_timeline in timeline.request_timelines.values()
    ]
    for request_timeline, timeline in sorted(request_timelines, key=lambda each: each[0].request):
        track = next(tracks)
        yield from _track(REQUESTS, track, named(request_timeline))
        args: Event = {SUMMARY_HEAD: summary(request_timeline)}
        spans = list(phases(request_timeline, timeline, now))
        for phase in spans:
            yield _slice(REQUESTS, track, phase.doing, phase.began, phase.ended, args)
        if request_timeline.how and not spans:
            yield _instant(
                REQUESTS,
                track,
                request_timeline.how,
                request_timeline.at["ended"],
                args | {"why": request_timeline.why},
            )


def phases(request_timeline: RequestTimeline, timeline: Timeline, now: float) -> Iterator[Phase]:
    """Yield what a request did, from when it was first seen to its end, or until `now`. There are no gaps."""
    end = request_timeline.at.get("ended", now)
    changes = [next(same) for _, same in groupby(_changes(request_timeline, timeline), key=itemgetter(0))]
    times = accumulate([*(min(at, end) for _, at in changes), end], max)
    for (doing, _), (began, ended) in zip(changes, pairwise(times), strict=True):
        if began < ended:
            yield Phase(doing, began, ended)


def _changes(request_timeline: RequestTimeline, timeline: Timeline) -> Iterator[tuple[Doing, float]]:
    """Yield what a request did, and since when."""
    if request_timeline.joined is not None:
        yield "queued", request_timeline.at.get("joined", 0.0)
    losses: list[tuple[int, TickWork | None]] = [(tick, None) for tick in request_timeline.lost]
    for number, cell in merge(
        losses, request_timeline.cells.items(), key=itemgetter(0)
    ):  # a loss comes before its tick's cell
        tick = timeline.ticks[number]
        if cell is None:
            yield "preempted", tick.planned
            continue
        yield "prefill" if cell.prefill else "decode", tick.planned
        if cell.prefill and cell.samples and tick.ended is not None:
            yield "decode", tick.ended


def _named(lane: str, what: str) -> str:
    """Return the name of something of a lane; `lane` is empty where there is one."""
    return f"{lane} {what}".lstrip()


# Events


def _slice(pid: int, tid: int, name: str, began: float, ended: float, args: Event) -> Event:
    start, end = _micro(began), _micro(ended)
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args}


def _instant(pid: int, tid: int, name: str, at: float, args: Event) -> Event:
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": _micro(at), "args": args}


def _counter(name: str, at: float, count: int) -> Event:
    return {"ph": "C", "name": name, "pid": DEVICE, "ts": _micro(at), "args": {"requests": count}}


def _track(pid: int, tid: int, name: str) -> Iterator[Event]:
    return _metadata("thread", {"pid": pid, "tid": tid}, name, tid)


def _metadata(what: str, ids: Event, name: str, place: int) -> Iterator[Event]:
    """Name a group or a track, and place it among the others."""
    for about, value in (("name", name), ("sort_index", place)):
        yield {"ph": "M", "name": f"{what}_{about}", "args": {about: value}} | ids


def _micro(seconds: float) -> int:
    """Return whole microseconds since the trace began; 0 for what was under way then."""
    return max(0, int(seconds * 1e6))
