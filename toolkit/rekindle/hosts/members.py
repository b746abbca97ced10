"""Joined followers, from the leader's side. Each has two threads, so that no caller waits for a socket."""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from rekindle.core.errors import HostLost
from rekindle.hosts.link import Frame, Link, LinkLost

END_SECONDS = 5.0
"""Seconds for followers to exit. Then jax ends its coordinator, which aborts the remaining followers."""


class Members:
    """All followers of this process. The loss of one ends all.

    Args:
        links: the links to the followers; the first is process 1.
    """

    def __init__(self, links: Sequence[Link]):
        self._links = links
        self._loss: HostLost | None = None
        self._loss_event = threading.Event()
        self._callbacks: list[Callable[[HostLost], None]] = []
        self._replies: SimpleQueue[tuple[int, Frame]] = SimpleQueue()
        self._outboxes: list[SimpleQueue[Frame | None]] = [SimpleQueue() for _ in links]
        self._threads = [self._thread(work, place) for work in (self._write, self._read) for place in range(len(links))]

    def __len__(self) -> int:
        return len(self._links)

    def say(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message to all followers, after all earlier messages; never block."""
        for outbox in self._outboxes:
            outbox.put(Frame(dict(header), body))

    def reply(self, timeout: float) -> tuple[int, Frame] | None:
        """Return the next message of any follower with the follower's place, or None after the timeout.

        Raises:
            HostLost: a follower is gone.
        """
        if self._loss is not None:
            raise self._loss
        try:
            return self._replies.get(timeout=timeout)
        except Empty:
            return None

    def loss(self, seconds: float = 0.0) -> HostLost | None:
        """Return the loss of a follower, if one is noticed within some seconds."""
        self._loss_event.wait(seconds)
        return self._loss

    def when_lost(self, callback: Callable[[HostLost], None]) -> None:
        """Call a function when a follower is lost, or now if one is lost already.

        Args:
            callback: the function. It is called on any thread, and must be quick and must not raise.
        """
        self._callbacks.append(callback)
        if self._loss is not None:
            callback(self._loss)

    def give_up(self, reason: str) -> None:
        """End all followers, since their states are unknown; do nothing if one is lost already."""
        if self._loss is None:
            loss = HostLost(f"{reason}; restart this process (in a notebook, its kernel) to join hosts again")
            self._end_all(loss, reason)

    def end(self) -> None:
        """End all followers, and wait at most `END_SECONDS` for the end."""
        self.say({"say": "end"})
        if self._loss is None:
            self._report(HostLost("the hosts are closed; restart this process to join others again"))
        for outbox in self._outboxes:
            outbox.put(None)
        deadline = monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        for link in self._links:
            link.close()

    def _thread(self, work: Callable[[int], None], place: int) -> threading.Thread:
        thread = threading.Thread(target=work, args=(place,), name="rekindle-hosts", daemon=True)
        thread.start()
        return thread

    def _write(self, place: int) -> None:
        try:
            while (frame := self._outboxes[place].get()) is not None:
                self._links[place].send(*frame)
        except LinkLost as error:
            self._lose(place, str(error))

    def _read(self, place: int) -> None:
        try:
            while True:
                frame = self._links[place].receive()
                if frame.header["say"] == "failed":
                    raise LinkLost(f"it has failed: {frame.header['why']}")
                self._replies.put((place, frame))
        except LinkLost as error:
            self._lose(place, str(error))

    def _lose(self, place: int, reason: str) -> None:
        if self._loss is not None:
            return
        loss = HostLost(
            f"process {place + 1} of {len(self) + 1}, which follows this one from {self._links[place].peer}, is lost: "
            f"{reason}. Its shard of the model is gone, so no session can continue over these hosts: restart this "
            "process (in a notebook, its kernel) to join hosts again. This process can open a session on its devices "
            "alone"
        )
        self._end_all(loss, f"another follower, process {place + 1}, is lost: {reason}")

    def _end_all(self, loss: HostLost, reason: str) -> None:
        self.say({"say": "over", "why": reason})
        self._report(loss)

    def _report(self, loss: HostLost) -> None:
        self._loss = loss
        self._loss_event.set()
        for callback in tuple(self._callbacks):
            callback(loss)
