"""The followers that have joined, as their leader reaches them: by two threads each, as nobody waits for sockets."""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from rekindle.core.errors import HostLost
from rekindle.hosts.link import Frame, Link, LinkLost

END_SECONDS = 5.0
"""How long the end waits for followers to be gone. After that jax ends its coordinator, which aborts who is not."""


class Members:
    """All followers of this process, which stand and fall together.

    Args:
        links: to each of them; the first is process 1.
    """

    def __init__(self, links: Sequence[Link]):
        self._links = links
        self._lost: HostLost | None = None
        self._noticed = threading.Event()
        self._to_tell: list[Callable[[HostLost], None]] = []
        self._replies: SimpleQueue[tuple[int, Frame]] = SimpleQueue()
        self._unsent: list[SimpleQueue[Frame | None]] = [SimpleQueue() for _ in links]
        self._threads = [self._thread(work, place) for work in (self._write, self._read) for place in range(len(links))]

    def __len__(self) -> int:
        return len(self._links)

    def say(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message to all of them, after those that were said before; never block."""
        for unsent in self._unsent:
            unsent.put(Frame(dict(header), body))

    def reply(self, timeout: float) -> tuple[int, Frame] | None:
        """Return the next message of any of them with its place, or None if none comes in time.

        Raises:
            HostLost: one of them is gone.
        """
        if self._lost is not None:
            raise self._lost
        try:
            return self._replies.get(timeout=timeout)
        except Empty:
            return None

    def lost(self, seconds: float = 0.0) -> HostLost | None:
        """Return the loss of one of them, if it is noticed within some seconds."""
        self._noticed.wait(seconds)
        return self._lost

    def when_lost(self, call: Callable[[HostLost], None]) -> None:
        """Have a function called when one of them is lost, or now if one is; it must be quick, and must not raise."""
        self._to_tell.append(call)
        if self._lost is not None:
            call(self._lost)

    def give_up(self, why: str) -> None:
        """End all of them, because nobody knows any more what each has done, unless one is lost already."""
        if self._lost is None:
            self._over(HostLost(f"{why}; restart this process (in a notebook, its kernel) to join hosts again"), why)

    def end(self) -> None:
        """Tell all of them that nothing more will come, and wait for a moment until they are gone."""
        self.say({"say": "end"})
        if self._lost is None:
            self._notice(HostLost("the hosts are closed; restart this process to join others again"))
        for unsent in self._unsent:
            unsent.put(None)
        latest = monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, latest - monotonic()))
        for link in self._links:
            link.close()

    def _thread(self, work: Callable[[int], None], place: int) -> threading.Thread:
        thread = threading.Thread(target=work, args=(place,), name="rekindle-hosts", daemon=True)
        thread.start()
        return thread

    def _write(self, place: int) -> None:
        try:
            while (frame := self._unsent[place].get()) is not None:
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

    def _lose(self, place: int, why: str) -> None:
        if self._lost is not None:
            return
        lost = HostLost(
            f"process {place + 1} of {len(self) + 1}, which follows this one from {self._links[place].peer}, is lost: "
            f"{why}. Its share of the model is gone, so no session goes on over these hosts: restart this process (in "
            "a notebook, its kernel) to join hosts again. A session on this process's own devices can be opened here"
        )
        self._over(lost, f"another follower, process {place + 1}, is lost: {why}")

    def _over(self, lost: HostLost, why: str) -> None:
        self.say({"say": "over", "why": why})
        self._notice(lost)

    def _notice(self, lost: HostLost) -> None:
        self._lost = lost
        self._noticed.set()
        for call in tuple(self._to_tell):
            call(lost)
