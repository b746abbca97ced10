"""The client of an engine: it sends requests, and delivers answers to their handles and feeds."""

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from rekindle.client.handle import Handle, Post
from rekindle.client.latencies import Latencies
from rekindle.client.queue_gate import QueueGate
from rekindle.client.submission import Submission
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import QueueFull
from rekindle.core.messages import (
    CacheSaved,
    CacheSaving,
    Message,
    Rejected,
    Started,
    Text,
    Texts,
    WeightsKept,
    WeightsUsed,
)

FIRST_TOKENS = 256
"""How many of the latest first tokens are remembered."""


class EngineClient:
    """Sends requests to the engine as there are places in its waiting queue, and hands its answers to who waits.

    Args:
        max_waiting: places in the waiting queue.

    Attributes:
        first_tokens: for each of the latest first tokens, when it came by `time.perf_counter`, and how many seconds
            its request had waited for it.
        latencies: the times of all requests until now.
    """

    def __init__(self, max_waiting: int):
        self._ids = itertools.count()
        self._gate = QueueGate(max_waiting)
        self._handles: dict[int, Handle] = {}
        self._answers: dict[int, Feed[Any]] = {}
        self._error: Exception | None = None
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=FIRST_TOKENS)
        self.latencies = Latencies()

    @property
    def under_way(self) -> dict[int, Handle]:
        """The handles of all requests that have not ended, by request id, oldest first. Any thread may ask."""
        return {number: handle for number, handle in self._handles.copy().items() if not handle.done}

    def submit(self, submission: Submission, post: Post, *, wait: bool) -> Handle:
        """Send a request, or have it wait outside until there is a place for it.

        Args:
            post: sends to the engine.
            wait: whether the request waits outside while the queue is full.

        Raises:
            QueueFull: the queue is full, and `wait` is False.
        """
        request_id = next(self._ids)
        handle = self._handles[request_id] = Handle(request_id, submission, post)
        try:
            if self._gate.enter(request_id, wait=wait):
                self._send(request_id)
            else:
                handle.record.pieces.when_closed(partial(self._forget_outside, request_id))
        except QueueFull:
            self._handles.pop(request_id, None)
            raise
        if self._error is not None:  # it came too late for `fail_all` to see it
            self._end(request_id, self._error)
        return handle

    def check_room(self) -> None:
        """Check that the waiting queue has room now; raise QueueFull if it has none."""
        self._gate.check_room()

    def ask(self, question: Callable[[int], Message], post: Post) -> tuple[int, Feed[Any]]:
        """Ask the engine for something other than a generation.

        Args:
            question: makes the message from a ticket, which the answers carry too.
            post: sends to the engine.

        Returns:
            (the ticket, a feed of the answers, which is closed after the last one, or when the engine has stopped).
        """
        ticket = next(self._ids)
        answers = self._answers[ticket] = Feed()
        post(question(ticket))
        if self._error is not None:  # it came too late for `fail_all` to see it
            answers.close()
        return ticket, answers

    def deliver(self, message: Message) -> None:
        """Take what the engine says to callers; runs on the engine's thread."""
        match message:
            case Texts(texts):
                for text in texts:
                    self._deliver(text)
            case Started() | Rejected():
                self._deliver(message)
            case CacheSaving(ticket):
                self._answers[ticket].put(message)
            case CacheSaved(ticket) | WeightsUsed(ticket) | WeightsKept(ticket):
                answers = self._answers.pop(ticket)
                answers.put(message)
                answers.close()
            case _:
                raise AssertionError(f"not for callers: {message!r}")

    def fail_all(self, error: Exception) -> None:
        """End every request with the same error, and those that are still to come."""
        self._error = error
        for answers in tuple(self._answers.values()):  # others may still come while these are told
            answers.close()
        for request_id in tuple(self._handles):
            self._end(request_id, error)

    def _deliver(self, message: Started | Rejected | Text) -> None:
        """Hand a message to the request that it is about, and the place of that request to the next one."""
        handle = self._handles.get(message.request_id)
        ended = isinstance(message, Rejected) or (isinstance(message, Text) and message.end is not None)
        if ended:
            self._handles.pop(message.request_id, None)
        if ended or isinstance(message, Started):
            self._send(self._gate.leave(message.request_id))
        if handle is None:
            return
        before = handle.record.first_token
        self.latencies.take(message, handle.record)  # first, so that who hears of an end finds it counted
        handle.record.deliver(message)
        if before is None and handle.record.first_token is not None:
            self.first_tokens.append((perf_counter(), handle.record.first_token))

    def _send(self, request_id: int | None) -> None:
        """Send a request that has a place. One that nobody wants any more gives its place to the next."""
        while request_id is not None:
            handle = self._handles.get(request_id)
            if handle is not None and handle.send():
                return
            self._handles.pop(request_id, None)
            request_id = self._gate.leave(request_id)

    def _forget_outside(self, request_id: int) -> None:
        """Keep nothing of a request that ended before it had a place."""
        if self._gate.give_up(request_id):
            self._handles.pop(request_id, None)

    def _end(self, request_id: int, error: Exception) -> None:
        if handle := self._handles.pop(request_id, None):
            handle.record.fail(error)
