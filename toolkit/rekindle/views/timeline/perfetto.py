"""Export of a trace for ui.perfetto.dev, in Chrome's trace event format.

The file has complete events ("X"), instants ("i"), counters ("C"), and metadata ("M") with the names and the order of
tracks. The format allows slices of one track to nest, but not to overlap otherwise; here they are disjoint. Times are
whole microseconds, so rounding by a reader cannot cause an overlap.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import accumulate, count, groupby, pairwise
from operator import itemgetter
from typing import Literal, NamedTuple

from rekindle.core.words import quantity
from rekindle.views.records import TraceRecord
from rekindle.views.timeline.lanes import timelines
from rekindle.views.timeline.requests import RequestTimeline, TickWork, Timeline
from rekindle.views.timeline.words import SUMMARY_HEAD, row_name, summary

Event = dict[str, object]

ACTORS, DEVICE, REQUESTS = 1, 2, 3
"""The process ids of the track groups."""
FIRST_TRACK = 10
"""The number of the first track.

Perfetto takes a track with the id of its process for a main thread, and track 0 for an idle thread.
"""


Activity = Literal["queued", "prefill", "decode", "preempted"]


class Phase(NamedTuple):
    """A period of one activity of a request, in seconds since the start of the trace."""

    activity: Activity
    began: float
    ended: float


def as_json(records: Sequence[TraceRecord], now: float, dropped: int) -> bytes:
    """Return a trace in the trace event format, as JSON in UTF-8.

    Args:
        now: the seconds since the start of the trace.
        dropped: the number of records dropped from the trace.
    """
    lanes, tracks = timelines(records), count(FIRST_TRACK)
    groups = {ACTORS: "actors", DEVICE: "device", REQUESTS: "requests"}
    events = [event for pid, name in groups.items() for event in _metadata("process", {"pid": pid}, name, pid)]
    events += _actors(records, tracks)
    for lane, timeline in lanes:
        events += [*_ticks(timeline, next(tracks), lane), *_counters(timeline, lane)]
    events += _requests([timeline for _, timeline in lanes], now, tracks)
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"by": "rekindle", "dropped": dropped}}
    # Readers may refuse surrogates, even as JSON escapes, so each is written as the text of its escape.
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half[0]):x}", text).encode()


def _actors(records: Sequence[TraceRecord], tracks: Iterator[int]) -> Iterator[Event]:
    """Yield a track for each actor, with a slice for each message."""
    by_actor = {actor: next(tracks) for actor in dict.fromkeys(record.place for record in records)}
    for actor, track in by_actor.items():
        yield from _track(ACTORS, track, actor)
    for record in records:
        args: Event = {"took": record.words}
        if record.answers:
            args["said"] = "\n".join(record.answers)
        yield _slice(ACTORS, by_actor[record.place], record.kind, record.began, record.ended, args)


def _ticks(timeline: Timeline, track: int, lane: str) -> Iterator[Event]:
    """Yield a slice for each tick, from its earliest start on the device to the readback of its tokens."""
    yield from _track(DEVICE, track, _lane_name(lane, "ticks"))
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
        if tick.onloaded_pages:
            args["pages copied in"] = tick.onloaded_pages
        yield _slice(DEVICE, track, f"tick {tick.number}", tick.began, tick.ended, args)


def _counters(timeline: Timeline, lane: str) -> Iterator[Event]:
    """Yield the numbers of running and waiting requests in each tick, for the traced requests."""
    numbers = list(timeline.ticks)
    # Counts are running sums of changes, so the cost of a request does not depend on its duration.
    changes = {name: [0] * (len(numbers) + 1) for name in ("running", "waiting")}
    for request in timeline.requests.values():
        for kind, first, after in request.intervals():
            if kind != "surplus":
                deltas = changes["waiting" if kind in {"queued", "preempted"} else "running"]
                deltas[bisect_left(numbers, first)] += 1
                deltas[bisect_left(numbers, after)] -= 1
    counts = {name: list(accumulate(deltas)) for name, deltas in changes.items()}
    for place, tick in enumerate(timeline.ticks.values()):
        yield from (_counter(_lane_name(lane, name), tick.planned_at, each[place]) for name, each in counts.items())
    if timeline.ticks and timeline.requests and all(request.end_reason for request in timeline.requests.values()):
        last = max(request.at["ended"] for request in timeline.requests.values())
        yield from (_counter(_lane_name(lane, name), last, 0) for name in counts)


def _requests(lanes: Sequence[Timeline], now: float, tracks: Iterator[int]) -> Iterator[Event]:
    """Yield a track for each request, with its phases, or with the instant of an immediate rejection."""
    requests = [(request, timeline) for timeline in lanes for request in timeline.requests.values()]
    for request, timeline in sorted(requests, key=lambda each: each[0].id):
        track = next(tracks)
        yield from _track(REQUESTS, track, row_name(request))
        args: Event = {SUMMARY_HEAD: summary(request)}
        spans = list(phases(request, timeline, now))
        for phase in spans:
            yield _slice(REQUESTS, track, phase.activity, phase.began, phase.ended, args)
        if request.end_reason and not spans:
            yield _instant(
                REQUESTS,
                track,
                request.end_reason,
                request.at["ended"],
                args | {"why": request.error},
            )


def phases(request: RequestTimeline, timeline: Timeline, now: float) -> Iterator[Phase]:
    """Yield the phases of a request without gaps, from its first occurrence to its end or to `now`."""
    end = request.at.get("ended", now)
    changes = [next(same) for _, same in groupby(_changes(request, timeline), key=itemgetter(0))]
    times = accumulate([*(min(at, end) for _, at in changes), end], max)
    for (activity, _), (began, ended) in zip(changes, pairwise(times), strict=True):
        if began < ended:
            yield Phase(activity, began, ended)


def _changes(request: RequestTimeline, timeline: Timeline) -> Iterator[tuple[Activity, float]]:
    """Yield the activities of a request, with the start of each."""
    if request.first_tick is not None:
        yield "queued", request.at.get("joined", 0.0)
    preemptions: list[tuple[int, TickWork | None]] = [(tick, None) for tick in request.preemptions]
    # At the same tick, the preemption comes before the work.
    for number, cell in merge(preemptions, request.cells.items(), key=itemgetter(0)):
        tick = timeline.ticks[number]
        if cell is None:
            yield "preempted", tick.planned_at
            continue
        yield "prefill" if cell.prefill else "decode", tick.planned_at
        if cell.prefill and cell.samples and tick.ended is not None:
            yield "decode", tick.ended


def _lane_name(lane: str, name: str) -> str:
    """Return a name prefixed by the lane; `lane` is empty with a single lane."""
    return f"{lane} {name}".lstrip()


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


def _metadata(kind: str, ids: Event, name: str, place: int) -> Iterator[Event]:
    """Yield the events with the name and the sort index of a group or a track."""
    for about, value in (("name", name), ("sort_index", place)):
        yield {"ph": "M", "name": f"{kind}_{about}", "args": {about: value}} | ids


def _micro(seconds: float) -> int:
    """Return whole microseconds since the start of the trace; 0 for earlier times."""
    return max(0, int(seconds * 1e6))
