"""The file of a trace has nested slices, names and counters, as readers of Chrome's trace event format need."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rekindle.core.errors import StorageError
from rekindle.core.messages import Text, Texts
from rekindle.core.messages.record import MessageRecord
from rekindle.session.session import Session
from rekindle.views.records import (
    ChunkRecord,
    EndRecord,
    JoinRecord,
    PlanRecord,
    TokensRecord,
    TraceRecord,
    trace_record,
)
from rekindle.views.timeline import perfetto
from rekindle.views.timeline.perfetto import ACTORS, DEVICE, REQUESTS, phases
from rekindle.views.timeline.requests import Timeline
from tests.unit.cards import HOSTILE
from tests.unit.traces import SEEDS, crowded, recorded, traced
from tests.waiting import until_blocking

Event = dict[str, Any]


def slices(events: list[Event], pid: int) -> dict[str, list[Event]]:
    """Return the slices of each track of a group, by the track's name."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == pid:
            tracks[names[event["tid"]]].append(event)
    return tracks


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return events_of(traced()[0].records, traced()[0].seconds)


def events_of(records: Sequence[TraceRecord], seconds: float) -> list[Event]:
    whole = json.loads(perfetto.as_json(records, seconds, 0))
    assert set(whole) == {"traceEvents", "displayTimeUnit", "otherData"}
    trace_events: list[Event] = whole["traceEvents"]
    return trace_events


@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_slices_of_a_track_never_overlap_and_every_event_is_well_formed(seed: int | None) -> None:
    """Check a session's trace, and traces of the scheduler alone with any requests."""
    records: Sequence[TraceRecord] = traced()[0].records if seed is None else crowded(seed).records
    seconds = traced()[0].seconds if seed is None else float(len(records))
    required = {"X": {"name", "pid", "tid", "ts", "dur", "args"}, "C": {"name", "pid", "ts", "args"}}
    required["i"] = {"name", "pid", "tid", "ts", "s", "args"}
    tracks: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events_of(records, seconds):
        if event["ph"] == "M":
            assert "ts" not in event
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            continue
        assert required[event["ph"]] <= set(event)
        assert isinstance(event["ts"], int)
        assert 0 <= event["ts"] <= 1e6 * seconds
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    for track in tracks.values():
        assert len({event["pid"] for event in track}) == 1, "the number of a track is its own in the whole file"
        assert all(event["dur"] >= 0 for event in track)
        track.sort(key=lambda event: event["ts"])
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(track))
    assert not tracks.keys() & {0, ACTORS, DEVICE, REQUESTS}, "those would pass for idle or main threads"


def test_each_message_is_a_slice_of_its_actor_and_each_tick_one_of_the_device(events: list[Event]) -> None:
    trace, _ = traced()
    actors = slices(events, ACTORS)
    assert sum(map(len, actors.values())) == len(trace.records)
    assert {"intake", "scheduler", "stepper", "settler", "detokenizer"} <= actors.keys()
    for record in trace.records:
        near = [event for event in actors[record.actor] if abs(event["ts"] - 1e6 * record.began) <= 1]
        assert any(event["args"]["took"] == record.words for event in near)
        assert all(abs(event["dur"] - 1e6 * (record.ended - record.began)) <= 2 for event in near[:1] if len(near) == 1)
    ticks = slices(events, DEVICE)["ticks"]
    timeline = Timeline(trace.records)
    done = [tick.number for tick in timeline.ticks.values() if tick.ended is not None]
    assert [event["name"] for event in ticks] == [f"tick {number}" for number in done]
    assert len(done) >= len(timeline.ticks) - 2, "all but those that a trace ends in"


def test_the_phases_of_a_request_follow_each_other_without_a_gap_to_its_end(events: list[Event]) -> None:
    trace, _ = traced()
    timeline, tracks = Timeline(trace.records), slices(events, REQUESTS)
    for request_timeline in timeline.requests.values():
        spans = list(phases(request_timeline, timeline, trace.seconds))
        assert [span.activity for span in spans] == [
            event["name"] for event in tracks[f"request {request_timeline.id}"]
        ]
        if not request_timeline.cells:
            continue
        assert all(one.ended == other.began for one, other in pairwise(spans))
        assert (spans[0].began, spans[-1].ended) == (request_timeline.at["joined"], request_timeline.at["ended"])
        assert [span.activity for span in spans][:2] == ["queued", "prefill"]
        # A request that gets pages again in the tick in which it lost them does not wait.
        assert sum(span.activity == "preempted" for span in spans) <= len(request_timeline.preemptions)
    assert any(event["name"] == "preempted" for track in tracks.values() for event in track)


def test_a_request_that_is_turned_away_is_an_instant_that_says_why(events: list[Event]) -> None:
    (track,) = [event for event in events if event["name"] == "thread_name" and event["args"]["name"] == "request 9"]
    (instant,) = [event for event in events if event["ph"] == "i"]
    assert (instant["name"], instant["s"], instant["tid"]) == ("rejected", "t", track["tid"])
    assert "no tokenizer" in instant["args"]["why"]
    assert "request 9" not in slices(events, REQUESTS)


def test_counters_are_how_many_did_what_in_each_tick_and_end_with_none(events: list[Event]) -> None:
    timeline = Timeline(traced()[0].records)
    kinds = list(
        zip(
            *(request_timeline.kinds(list(timeline.ticks)) for request_timeline in timeline.requests.values()),
            strict=True,
        )
    )
    expected = {
        "waiting": [sum(kind in {"queued", "preempted"} for kind in tick) for tick in kinds],
        "running": [sum(kind in {"prefill", "decode", "idle"} for kind in tick) for tick in kinds],
    }
    assert {event["name"] for event in events if event["ph"] == "C"} == set(expected)
    assert max(expected["running"]) <= 4 <= max(expected["waiting"])
    for name, counts in expected.items():
        values = [event["args"]["requests"] for event in events if event["ph"] == "C" and event["name"] == name]
        assert values == [*counts, 0]


def test_twice_as_many_requests_are_twice_the_work_however_long_they_wait() -> None:
    def crowd(requests: int) -> list[TraceRecord]:
        """Record simultaneous requests, each with a tick of its own."""
        joined = [JoinRecord(request, 3, False) for request in range(requests)]
        ticks = [
            fact
            for request in range(requests)
            for fact in (
                PlanRecord(request + 1, (ChunkRecord(request, 0, 3, True),), (), 0, ()),
                TokensRecord(request + 1, (request,)),
                EndRecord(request, "length", ""),
            )
        ]
        return recorded(*joined, *ticks)

    once, twice = (calls(partial(perfetto.as_json, crowd(requests), 1e4, 0)) for requests in (100, 200))
    assert twice < 2.2 * once


def calls(work: Callable[[], object]) -> int:
    """Count the function calls of some work."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_hostile_text_is_text_of_whole_characters() -> None:
    record = trace_record(MessageRecord(HOSTILE, Texts((Text(1, HOSTILE, (), None),)), (), 0.0, 1.0), 0.0)
    data = perfetto.as_json([record], 1.0, 0)
    events = json.loads(data)["traceEvents"]
    json.dumps(events, ensure_ascii=False).encode()  # half a character would fail here
    (track,) = slices(events, ACTORS)
    assert track == HOSTILE.encode("utf-8", "backslashreplace").decode()


def test_ticks_without_a_request_are_a_file() -> None:
    events = json.loads(perfetto.as_json(recorded(PlanRecord(5, (), (), 3, ())), 1.0, 0))["traceEvents"]
    assert [event["args"]["requests"] for event in events if event["ph"] == "C"] == [0, 0]


def test_an_empty_trace_and_one_that_records_are_files_too(session: Session, tmp_path: Path) -> None:
    def export() -> list[Event]:
        trace.to_perfetto(tmp_path / "trace.json")
        trace_events: list[Event] = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
        return trace_events

    trace = session.trace()
    assert all(event["ph"] == "M" for event in export())
    with trace:
        handle = session.submit(token_ids=[1, 2, 3], max_tokens=100)
        until_blocking(lambda: any(record.kind == "Settled" for record in trace.records), "a tick has settled")
        assert slices(export(), REQUESTS)["request 0"]
        handle.result()


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_the_old_one(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.trace() as trace:
        session.generate_sync(token_ids=[1], max_tokens=2)
    with pytest.raises(StorageError, match="pass a file in an existing, writable directory"):
        trace.to_perfetto(tmp_path / "nowhere" / "trace.json")
    path = tmp_path / "trace.json"
    trace.to_perfetto(path)
    before = path.read_bytes()

    def fail(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(StorageError, match="No space left"):
        trace.to_perfetto(str(path))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["trace.json"]
