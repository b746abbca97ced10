"""Traces: recordings of an engine's messages."""

import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rekindle import markup
from rekindle.core.errors import ConfigError, SessionError, StorageError
from rekindle.core.messages import Received
from rekindle.core.messages.record import MessageRecord
from rekindle.core.store.directory import atomic_write
from rekindle.core.words import quantity, seconds
from rekindle.views.drawing import Drawing, stack, svg_text
from rekindle.views.records import TraceRecord, trace_record
from rekindle.views.timeline import drawing as timeline_drawing
from rekindle.views.timeline import perfetto
from rekindle.views.timeline.lanes import timelines
from rekindle.views.watching import Watching

if TYPE_CHECKING:
    from rekindle.assembly.thread import EngineThread

NO_TICKS = "replicas tick in other processes, so the trace has no ticks; trace.records has the messages"
"""The text in place of a timeline for replicas on Ray."""


class Trace:
    """A recording of all messages within a `with` statement: `with session.trace() as t`.

    A record takes about 600 bytes: it has text and small numbers, but no arrays, and long texts are cut. A trace can be
    read while it records.

    Args:
        most: the maximum number of records. Beyond it, the oldest records are dropped and counted.

    Raises:
        ConfigError: `most` is not a positive integer.
    """

    def __init__(self, engine: "EngineThread", most: int):
        if type(most) is not int or most < 1:
            raise ConfigError(f"most must be a positive integer, the number of messages to keep; got {most!r:.80}")
        self._watching: Watching | None = Watching(engine, self._observe)
        self._lock = threading.Lock()
        self._records: deque[TraceRecord] = deque(maxlen=most)
        self._count = 0
        self._began: float | None = None
        self._ended: float | None = None

    def __enter__(self) -> "Trace":
        if self._began is not None or self._watching is None:
            raise SessionError("a trace records one with statement; begin another with session.trace()")
        self._began = perf_counter()
        try:
            self._watching.__enter__()
        except SessionError:
            self._began = None
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        with self._lock:  # the engine's thread may be recording a message
            self._ended = perf_counter()
        # A trace may outlive its session, so it drops its reference to the engine.
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.__exit__(kind, error, at)

    @property
    def records(self) -> tuple[TraceRecord, ...]:
        """The records of the messages, oldest first, without dropped records."""
        with self._lock:
            return tuple(self._records)

    @property
    def dropped(self) -> int:
        """The number of dropped records."""
        with self._lock:
            return self._count - len(self._records)

    @property
    def seconds(self) -> float:
        """The duration of the recording so far, in seconds."""
        if self._began is None:
            return 0.0
        return (perf_counter() if self._ended is None else self._ended) - self._began

    def timeline(self, *, requests: Collection[int] | None = None, ticks: range | None = None) -> Drawing:
        """Draw the state of each request in each tick: queued, prefill, decode, idle, preempted or surplus.

        There is one timeline for each lane. For replicas on Ray the picture is a note instead, because their ticks run
        in other processes and are not traced.

        Args:
            requests: the ids of the requests to draw; None for as many as fit.
            ticks: the numbers of the ticks to draw, such as `range(100, 140)`. None for all ticks of the drawn
                requests.

        Raises:
            ConfigError: `requests` or `ticks` is not a collection of numbers.
        """
        filters: dict[str, tuple[object, str]] = {"requests": (requests, "[3]"), "ticks": (ticks, "range(100, 140)")}
        for name, (value, example) in filters.items():
            if isinstance(value, str) or not isinstance(value, Collection | None):
                raise ConfigError(f"{name} must be a collection of numbers, such as {example}, got {value!r:.80}")
        records = self.records
        if any(record.kind == Received.__name__ for record in records):
            return Drawing("Timeline", "", 30, svg_text(4, 20, NO_TICKS), NO_TICKS)
        dropped = self.dropped
        note = f"earlier messages are missing: the oldest {quantity(dropped, 'message')} dropped" if dropped else ""
        drawings = [(name, timeline_drawing.draw(each, requests, ticks, note)) for name, each in timelines(records)]
        return stack("Timeline", quantity(len(drawings), "lane"), drawings) if drawings[0][0] else drawings[0][1]

    def to_perfetto(self, path: str | Path) -> None:
        """Write the trace to a file for ui.perfetto.dev, in Chrome's trace event format.

        The file has a track for each actor, for the ticks of the device and for each request, and counters of running
        and waiting requests. It contains parts of prompts and outputs, so only its owner can read it.

        Raises:
            StorageError: the file cannot be written.
        """
        content = perfetto.as_json(self.records, self.seconds, self.dropped)
        try:
            with atomic_write(Path(path)) as file:
                file.write(content)
        except OSError as error:
            raise StorageError(
                f"the trace cannot be written to {path} ({error.strerror}); pass a file in an existing, writable "
                "directory"
            ) from error

    def _observe(self, message: MessageRecord) -> None:
        assert self._began is not None, "the observer was called before the start of the trace"
        record = trace_record(message, self._began)
        with self._lock:
            if self._ended is None:
                self._records.append(record)
                self._count += 1

    def _summary(self) -> str:
        """Return the state and the counts of the trace, as text."""
        state = "not begun" if self._began is None else "recording" if self._ended is None else "recorded"
        records, dropped = self.records, self.dropped
        ticks = {record.tick for record in records if record.tick is not None}
        requests = {request for record in records for request in record.requests}
        oldest = f" (the oldest {dropped:,} dropped)" if dropped else ""
        counts = f"{quantity(len(ticks), 'tick')}, {quantity(len(requests), 'request')}"
        messages = f"{quantity(len(records) + dropped, 'message')}{oldest}"
        return f"{state}: {messages}, {counts}, {seconds(self.seconds)}"

    def __repr__(self) -> str:
        return f"<rekindle.Trace {self._summary()}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        hints = {"timeline": "trace.timeline()", "for ui.perfetto.dev": "trace.to_perfetto(path)"}
        return markup.bundle(repr(self), markup.card("Trace", self._summary(), markup.facts(hints)))
