"""All who wait for the engine: a handle for each request, found by its id when the engine says something of it."""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from rekindle.concurrency.feed import Feed
from rekindle.errors import QueueFull, SessionError
from rekindle.messages import (
    CacheSaved,
    CacheSaving,
    Cancel,
    Message,
    NewWeights,
    Prompt,
    Rejected,
    SaveCache,
    Started,
    Submit,
    Text,
    WeightsUsed,
)
from rekindle.request import SamplingParams
from rekindle.results import Timings
from rekindle.session.handle import Handle

Post = Callable[[Message], None]

ENDED = 256
"""Of how many requests the timings are remembered."""


class Callers:
    """Hands requests to the engine as there is room in its waiting queue, and its answers to the handles.

    Args:
        max_waiting: places in the waiting queue.

    Attributes:
        ended: of the last requests that ended well, when, in seconds of `time.perf_counter`, and their timings.
    """

    def __init__(self, max_waiting: int):
        self._ids = itertools.count()
        self._places = Places(max_waiting)
        self._handles: dict[int, Handle] = {}
        self._queued: set[int] = set()
        self._weights: dict[int, Feed[None]] = {}
        self._saves: dict[int, Feed[CacheSaving | CacheSaved]] = {}
        self._error: Exception | None = None
        self.ended: deque[tuple[float, Timings]] = deque(maxlen=ENDED)

    @property
    def under_way(self) -> dict[int, Handle]:
        """The handles of all requests that have not ended, by request id, oldest first. Any thread may ask."""
        return {number: handle for number, handle in self._handles.copy().items() if not handle.done}

    def submit(self, prompt: Prompt, params: SamplingParams, post: Post, *, wait: bool, hold: bool = False) -> Handle:
        """A handle for a new request.

        Args:
            prompt: as in `Submit`.
            params: as in `Submit`.
            post: sends to the engine.
            wait: whether the request waits outside while the queue is full.
            hold: as in `Submit`.

        Raises:
            QueueFull: the queue is full, and `wait` is False.
        """
        request_id = next(self._ids)

        def say(message: Message) -> None:
            try:
                post(message)
            except SessionError as error:
                self._end(request_id, error)

        def send() -> None:
            self._queued.add(request_id)
            say(Submit(request_id, prompt, params, hold))

        def enter() -> bool:
            wanted = handle.send()
            if not wanted:
                self._handles.pop(request_id, None)
            return wanted

        handle = self._handles[request_id] = Handle(send, partial(say, Cancel(request_id)), params)
        if not self._places.enter(enter, wait=wait):
            self._handles.pop(request_id, None)
            raise QueueFull(
                f"{self._places.places} requests are waiting already, which is max_waiting; "
                "await one of them first, use generate or stream, which wait for room, or raise max_waiting in open()"
            )
        if self._error is not None:  # it came too late for `fail_all` to see it
            self._end(request_id, self._error)
        return handle

    def new_weights(self, weights: list[Any], post: Post, *, fail: bool) -> tuple[int, Feed[None]]:
        """Have these weights used.

        Args:
            weights, fail: as in `NewWeights`.
            post: sends to the engine.

        Returns:
            (the ticket, a feed that is closed when they are in use, or when the engine has stopped).
        """
        ticket = next(self._ids)
        used = self._weights[ticket] = Feed()
        post(NewWeights(ticket, weights, fail))
        if self._error is not None:
            used.close()
        return ticket, used

    def save_cache(self, post: Post) -> Feed[CacheSaving | CacheSaved]:
        """Have all cached pages written to disk: a feed that ends with the answer, or when the engine has stopped."""
        ticket = next(self._ids)
        saved = self._saves[ticket] = Feed()
        post(SaveCache(ticket))
        if self._error is not None:
            saved.close()
        return saved

    def deliver(self, message: Message) -> None:
        """Take what the engine says to callers; runs on the engine's thread."""
        if isinstance(message, CacheSaving | CacheSaved):
            self._saves[message.ticket].put(message)
            if isinstance(message, CacheSaved):
                self._saves.pop(message.ticket).close()
            return
        if isinstance(message, WeightsUsed):
            self._weights.pop(message.ticket).close()
            return
        assert isinstance(message, Started | Rejected | Text), f"not for callers: {message!r}"
        request_id = message.request_id
        handle = self._handles.get(request_id)
        ended = isinstance(message, Rejected) or (isinstance(message, Text) and message.end is not None)
        if ended:
            self._handles.pop(request_id, None)
        if ended or isinstance(message, Started):
            self._leave_queue(request_id)
        if handle is not None:
            handle.deliver(message)
            if ended and handle.generation is not None and handle.generation.token_ids:
                self.ended.append((perf_counter(), handle.generation.timings))

    def fail_all(self, error: Exception) -> None:
        """End every request with the same error, those that are still to come too."""
        self._error = error
        for used in tuple(self._weights.values()):  # others may still come while these are told
            used.close()
        for saved in tuple(self._saves.values()):
            saved.close()
        for request_id in tuple(self._handles):
            self._end(request_id, error)

    def _end(self, request_id: int, error: Exception) -> None:
        self._queued.discard(request_id)
        if handle := self._handles.pop(request_id, None):
            handle.fail(error)

    def _leave_queue(self, request_id: int) -> None:
        if request_id in self._queued:
            self._queued.discard(request_id)
            self._places.leave()


Send = Callable[[], bool]
"""Puts a request on its way; False if its caller no longer wants it."""


class Places:
    """The bound of the waiting queue, kept on the callers' side: who finds no room waits outside, in order.

    Any thread may call any method; none blocks.

    Args:
        places: how many requests may be in the queue.
    """

    def __init__(self, places: int):
        self.places = places
        self._free = places
        self._outside: deque[Send] = deque()
        self._lock = threading.Lock()

    def enter(self, send: Send, *, wait: bool) -> bool:
        """Send now if there is room, or else, with `wait`, as soon as there is.

        Returns:
            False if there is no room and `wait` is False: nothing was or will be sent.
        """
        with self._lock:
            if self._free == 0:
                if wait:
                    self._outside.append(send)
                return wait
            self._free -= 1
        if not send():
            self.leave()
        return True

    def leave(self) -> None:
        """Give a place back; the first of those outside takes it."""
        while True:
            with self._lock:
                if not self._outside:
                    self._free += 1
                    return
                send = self._outside.popleft()
            if send():
                return
