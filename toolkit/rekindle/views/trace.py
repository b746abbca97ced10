"""A recording of what an engine does, to look at afterwards or meanwhile."""

import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path
from time import perf_counter
from warnings import warn

from rekindle.core import markup
from rekindle.core.engine.thread import EngineThread
from rekindle.core.errors import ConfigError, SessionError, StorageError
from rekindle.core.markup import quantity
from rekindle.core.messages import Received
from rekindle.core.messages.record import MessageRecord
from rekindle.core.store.directory import atomic_write
from rekindle.views.drawing import Drawing, stacked, words
from rekindle.views.records import TraceRecord, trace_record
from rekindle.views.timeline import drawing as timeline_drawing
from rekindle.views.timeline import perfetto
from rekindle.views.timeline.lanes import timelines
from rekindle.views.watching import Watching

ELSEWHERE = "replicas tick in processes of their own, of which no tick was traced; trace.records has the messages"


class Trace:
    """A recording of every message within a `with` statement: `with session.trace() as t`.

    It keeps words and small numbers of each message, some 600 bytes: no arrays, and only the beginning of a text. It
    may be looked at while it records.

    Args:
        most: how many messages are kept. If there are more, the oldest are dropped and counted.

    Raises:
        ConfigError: `most` is not a positive integer.
    """

    def __init__(self, engine: EngineThread, most: int):
        if type(most) is not int or most < 1:
            raise ConfigError(f"most must be a positive integer, the messages to keep; got {most!r:.80}")
        self._watching: Watching | None = Watching(engine, self._observe)
        self._lock = threading.Lock()
        self._kept: deque[TraceRecord] = deque(maxlen=most)
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
        with self._lock:  # the engine's thread may just be about to record one more message
            self._ended = perf_counter()
        # A trace may outlive its session, so it does not keep a reference to the engine.
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.__exit__(kind, error, at)

    @property
    def records(self) -> tuple[TraceRecord, ...]:
        """The recorded messages that are kept, oldest first."""
        with self._lock:
            return tuple(self._kept)

    @property
    def handled(self) -> tuple[TraceRecord, ...]:
        """The records, by their former name."""
        warn("Trace.handled is now Trace.records", DeprecationWarning, stacklevel=2)
        return self.records

    @property
    def dropped(self) -> int:
        """Return how many recorded messages, the oldest, are no longer kept."""
        with self._lock:
            return self._count - len(self._kept)

    @property
    def seconds(self) -> float:
        """Return how many seconds it has recorded."""
        if self._began is None:
            return 0.0
        return (perf_counter() if self._ended is None else self._ended) - self._began

    def timeline(self, *, requests: Collection[int] | None = None, ticks: range | None = None) -> Drawing:
        """Draw requests against ticks: who waited, whose prompt was computed, who got a token, who lost their pages.

        Each lane has a picture of its own, since it has ticks of its own. Replicas on Ray tick in other processes, of
        which a trace knows no ticks.

        Args:
            requests: the ids of the requests to draw; None for all, as far as they fit.
            ticks: the numbers of the ticks to draw, say `range(100, 140)`. None stands for all, or if not all requests
                are drawn, for those in which the drawn requests were there.

        Raises:
            ConfigError: `requests` or `ticks` is not a collection of numbers.
        """
        wanted: dict[str, tuple[object, str]] = {"requests": (requests, "[3]"), "ticks": (ticks, "range(100, 140)")}
        for name, (given, example) in wanted.items():
            if isinstance(given, str) or not isinstance(given, Collection | None):
                raise ConfigError(f"{name} must be a collection of numbers, such as {example}, got {given!r:.80}")
        records = self.records
        if any(record.kind == Received.__name__ for record in records):
            return Drawing(ELSEWHERE, 30, words(4, 20, ELSEWHERE), ELSEWHERE)
        dropped = self.dropped
        note = f"what came before is not known: the oldest {quantity(dropped, 'message')} dropped" if dropped else ""
        drawings = [(name, timeline_drawing.draw(each, requests, ticks, note)) for name, each in timelines(records)]
        return stacked("timelines of lanes", drawings) if drawings[0][0] else drawings[0][1]

    def to_perfetto(self, path: str | Path) -> None:
        """Write the trace to a file for ui.perfetto.dev, in Chrome's trace event format.

        The file has a track for each actor, one for the ticks of the device, one for each request, and counts of the
        requests that ran and waited. Only you can read it, because it contains beginnings of prompts and texts.

        Raises:
            StorageError: the file cannot be written.
        """
        written = perfetto.as_json(self.records, self.seconds, self.dropped)
        try:
            with atomic_write(Path(path)) as file:
                file.write(written)
        except OSError as error:
            raise StorageError(
                f"the trace cannot be written to {path} ({error.strerror}); give a file in a directory that exists "
                "and that you can write to"
            ) from error

    def _observe(self, message: MessageRecord) -> None:
        assert self._began is not None, "it watches before it has begun"
        record = trace_record(message, self._began)
        with self._lock:
            if self._ended is None:
                self._kept.append(record)
                self._count += 1

    def _summary(self) -> str:
        """Return how far it is and what it recorded, in words."""
        state = "not begun" if self._began is None else "recording" if self._ended is None else "recorded"
        records, dropped = self.records, self.dropped
        ticks = {record.tick for record in records if record.tick is not None}
        requests = {request for record in records for request in record.requests}
        gone = f" (the oldest {dropped:,} dropped)" if dropped else ""
        counts = f"{quantity(len(ticks), 'tick')}, {quantity(len(requests), 'request')}"
        messages = f"{quantity(len(records) + dropped, 'message')}{gone}"
        return f"{state}: {messages}, {counts}, {markup.seconds(self.seconds)}"

    def __repr__(self) -> str:
        return f"<rekindle.Trace {self._summary()}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        hints = {"its picture": "trace.timeline()", "for ui.perfetto.dev": "trace.to_perfetto(path)"}
        return markup.bundle(repr(self), markup.card("Trace", self._summary(), markup.facts(hints)))
