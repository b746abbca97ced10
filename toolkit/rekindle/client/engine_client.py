"""Client of the engine: sends requests and delivers answers to their handles and feeds."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rekindle.client.adapters import AdapterTable
from rekindle.client.handle import Handle, Post, RequestDrawer
from rekindle.client.latencies import Latencies
from rekindle.client.queue_gate import QueueGate
from rekindle.client.record import Record
from rekindle.client.submission import Submission
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import NoWeights, QueueFull
from rekindle.core.messages import (
    AdapterPut,
    CacheSaved,
    CacheSaving,
    Inspected,
    Message,
    Rejected,
    Started,
    Text,
    Texts,
    WeightsKept,
    WeightsReplaced,
    WeightsUsed,
)

if TYPE_CHECKING:
    from rekindle.assembly.loaded_engine import LoadedEngine
    from rekindle.assembly.thread import EngineThread


class WeightsInUse:
    """The weights in use, and the digests of all weights so far.

    Args:
        present: whether the engine opens with weights.

    Attributes:
        version: the number of the weights in use; 0 for the initial ones.
        digests: the digests of the weights so far, by their numbers.
        present: whether the engine has had weights.
        asleep: whether the device has neither weights nor pages.
    """

    def __init__(self, *, present: bool):
        self.version = 0
        self.digests: dict[int, str] = {}
        self.present = present
        self.asleep = False

    @property
    def digest(self) -> str:
        """The digest of the weights in use; empty if it is unknown."""
        return self.digests.get(self.version, "")

    def take(self, message: WeightsUsed, digest: str) -> None:
        """Record a change of weights, or the begin of a sleep."""
        self.version, self.asleep = message.version, message.asleep
        if not message.asleep:
            self.present = True
            self.digests[message.version] = digest

    def replace(self, version: int, digest: str) -> bool:
        """Record a replacement by another session; return False for one known already."""
        if (version, digest) == (self.version, self.digest):
            return False
        self.version, self.digests[version] = version, digest
        return True


FIRST_TOKENS = 256
"""Maximum number of recent first tokens kept for the dashboard."""


class EngineClient:
    """Client of the engine: sends requests while its queue has room, and routes answers to handles and feeds.

    Args:
        max_waiting: the capacity of the waiting queue.
        has_weights: whether the engine opens with weights; without, requests are refused until it gets some.

    Attributes:
        first_tokens: (arrival by `time.perf_counter`, seconds since submission) of the most recent first tokens.
        latencies: latency histograms of all requests so far.
        weights: the weights in use.
        adapters: the adapters, and their uses by requests.
    """

    def __init__(self, max_waiting: int, *, has_weights: bool = True):
        self._ids = itertools.count()
        self._gate = QueueGate(max_waiting)
        self._handles: dict[int, Handle] = {}
        self._answers: dict[int, Feed[Any]] = {}
        self._error: Exception | None = None
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=FIRST_TOKENS)
        self.latencies = Latencies()
        self.weights = WeightsInUse(present=has_weights)
        self._asked_digests: dict[int, str] = {}
        self.adapters = AdapterTable()

    @property
    def under_way(self) -> dict[int, Handle]:
        """Handles of all unfinished requests, by request id, oldest first. Thread-safe."""
        return {number: handle for number, handle in self._handles.copy().items() if not handle.done}

    def submit(self, submission: Submission, post: Post, *, wait: bool, drawer: RequestDrawer | None = None) -> Handle:
        """Send a request, or queue it on the client's side until the engine's queue has room.

        Args:
            post: sends a message to the engine.
            wait: whether to queue the request on the client's side if the engine's queue is full.
            drawer: draws the request; None for a request without a display.

        Raises:
            QueueFull: the engine's queue is full and `wait` is False.
            NoWeights: the engine has had no weights yet.
            InvalidRequest: there is no adapter of this name.
        """
        if not self.weights.present:
            raise NoWeights(
                "the session was opened with weights=None and has no weights yet: give it all tensors by "
                "session.update_weights, and then submit requests"
            )
        adapter = self.adapters.take(submission.params.adapter)
        request_id = next(self._ids)
        handle = self._handles[request_id] = Handle(request_id, replace(submission, adapter=adapter), post, drawer)
        if adapter is not None:
            handle.record.pieces.when_closed(partial(self.adapters.give_back, adapter))
        try:
            if self._gate.enter(request_id, priority=submission.params.priority, wait=wait):
                self._send(request_id)
            else:
                handle.record.pieces.when_closed(partial(self._forget_outside, request_id))
        except QueueFull as error:
            self._handles.pop(request_id, None)
            handle.record.fail(error)  # nobody has the handle
            raise
        if self._error is not None:  # submitted too late for `fail_all` to see it
            self._end(request_id, self._error)
        return handle

    def check_room(self, priority: int) -> None:
        """Raise QueueFull if the waiting queue has no room for a request of this priority."""
        self._gate.check_room(priority)

    def ask(self, question: Callable[[int], Message], post: Post, digest: str = "") -> tuple[int, Feed[Any]]:
        """Send the engine a command other than a request.

        Args:
            question: returns the command for a ticket; the engine's answers carry the same ticket.
            post: sends a message to the engine.
            digest: the digest of the weights in the command; empty for a command without weights.

        Returns:
            (ticket, feed of the answers). The feed closes after the last answer, or when the engine stops.
        """
        ticket = next(self._ids)
        answers = self._answers[ticket] = Feed()
        if digest:
            self._asked_digests[ticket] = digest
        post(question(ticket))
        if self._error is not None:  # sent too late for `fail_all` to see it
            answers.close()
        return ticket, answers

    def deliver(self, message: Message) -> None:
        """Deliver a message of the engine to its handle or feed. Called on the engine's thread."""
        match message:
            case Texts(texts):
                self._deliver_texts(texts)
            case Started() | Rejected():
                self._deliver(message)
            case WeightsReplaced(version, digest):
                if self.weights.replace(version, digest):  # told by each of several lanes
                    warn(
                        f"another session has replaced the weights of the replicas, which are number {version} now: "
                        "the answers that follow are of these weights"
                    )
            case CacheSaving(ticket):
                self._answers[ticket].put(message)
            case (
                CacheSaved(ticket) | WeightsUsed(ticket) | WeightsKept(ticket) | AdapterPut(ticket) | Inspected(ticket)
            ):
                if isinstance(message, WeightsUsed):  # before its caller wakes up
                    self.weights.take(message, self._asked_digests.get(ticket, ""))
                self._asked_digests.pop(ticket, None)
                answers = self._answers.pop(ticket)
                answers.put(message)
                answers.close()
            case _:
                raise AssertionError(f"message without a receiver on the client's side: {message!r}")

    def fail_all(self, error: Exception) -> None:
        """Fail every current and future request with the same error."""
        self._error = error
        for answers in tuple(self._answers.values()):  # other threads may add feeds meanwhile
            answers.close()
        for request_id in tuple(self._handles):
            self._end(request_id, error)

    def _deliver_texts(self, texts: Sequence[Text]) -> None:
        """Deliver the texts of a tick, all at one time. A woken caller sees them counted."""
        now, deliveries = perf_counter(), list[tuple[Record, Text]]()
        for text in texts:
            handle = self._handles.get(text.request_id)
            if text.end is not None:
                self._handles.pop(text.request_id, None)
                self._send(self._gate.leave(text.request_id))
            if handle is not None:
                deliveries.append((handle.record, text))
        self.first_tokens += [(now, seconds) for seconds in self.latencies.take_texts(deliveries, now)]
        for record, text in deliveries:
            if text.end is None:
                record.output.grow(text)
            else:
                record.deliver(text)

    def _deliver(self, message: Started | Rejected) -> None:
        """Deliver the start or the failure of a request, and send the next one, as this one has left the queue."""
        handle = self._handles.get(message.request_id)
        if isinstance(message, Rejected):
            self._handles.pop(message.request_id, None)
        self._send(self._gate.leave(message.request_id))
        if handle is None:
            return
        if not handle.record.synthetic:
            self.latencies.take(message, handle.record)  # before delivery, so that a woken caller sees the count
        handle.record.deliver(message)

    def _send(self, request_id: int | None) -> None:
        """Send a request admitted to the queue; if it was cancelled, admit and send the next one."""
        while request_id is not None:
            handle = self._handles.get(request_id)
            if handle is not None and handle.send():
                return
            self._handles.pop(request_id, None)
            request_id = self._gate.leave(request_id)

    def _forget_outside(self, request_id: int) -> None:
        """Forget a request that ended before it was admitted to the queue."""
        if self._gate.give_up(request_id):
            self._handles.pop(request_id, None)

    def _end(self, request_id: int, error: Exception) -> None:
        if handle := self._handles.pop(request_id, None):
            handle.record.fail(error)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class OpenEngine:
    """The engine of one session.

    Attributes:
        thread: runs the engine, and takes commands and observers.
        facts: the model, its settings, limits and programs, and the counts so far.
        client: the requests in flight, the adapters, the weights in use and the latencies.
    """

    thread: "EngineThread"
    facts: "LoadedEngine"
    client: EngineClient

    def submit(self, submission: Submission, *, wait: bool, drawer: RequestDrawer | None = None) -> Handle:
        """Send a request; see `EngineClient.submit`."""
        return self.client.submit(submission, self.thread.post, wait=wait, drawer=drawer)

    def ask(self, question: Callable[[int], Message], digest: str = "") -> tuple[int, Feed[Any]]:
        """Send a command other than a request; see `EngineClient.ask`."""
        return self.client.ask(question, self.thread.post, digest)

    def check(self) -> None:
        """Raise the error of the engine, if the engine has ended."""
        if self.thread.error is not None:
            raise self.thread.error.with_traceback(None)
