"""The followers in one session: what its engine tells them, and waits for."""

import threading
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import jax

from rekindle.core.checkpoints.weights import Weights
from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.concurrency.progress import Progress, Report, silent
from rekindle.core.config import Settings
from rekindle.core.device.orders import Order, SharedWeights, Use
from rekindle.core.engine.loading.blueprint import Blueprint
from rekindle.core.errors import HostLost, HostRefused, SessionClosed
from rekindle.hosts.members import Members
from rekindle.hosts.opening import asked, weights_asked
from rekindle.hosts.wire import frame_of

LOOK_SECONDS = 0.1
"""How often a wait for followers looks whether it is still wanted."""
NOTICE_SECONDS = 2.0
"""How long an error waits for news of a follower's end: a broken collective is often heard of first."""


class FollowerGroup:
    """All followers, for one session; a context manager that closes it.

    Args:
        members: the followers.
        number: the session's own.

    Attributes:
        closed: whether the session has ended.
    """

    def __init__(self, members: Members, number: int):
        self._members, self._number = members, number
        self._lost: Mailbox[HostLost] = Mailbox()
        self._loads = 0
        self._loading = threading.Lock()
        self.closed = False
        members.when_lost(self._lost.put)

    def __enter__(self) -> "FollowerGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, asked: Mapping[str, Any]) -> None:
        """Have all followers open a model, as `opening.asked` says it."""
        self._members.say({"say": "open", "session": self._number, **asked})

    def open_model(
        self, model: str | PathLike[str], revision: str | None, settings: Settings, blueprint: Blueprint
    ) -> None:
        """Have all followers open a model with settings that leave nothing to choose.

        Raises:
            OSError: a weight file cannot be read.
        """
        self.open(asked(model, revision, settings, blueprint))

    def load_weights(self, weights: Weights, read: Callable[[], list[jax.Array]]) -> SharedWeights:
        """Have all followers read weights, as `load` does; raises as that and `weights_asked`."""
        return self.load(weights_asked(weights), read)

    def load(self, asked: Mapping[str, Any], read: Callable[[], list[jax.Array]]) -> SharedWeights:
        """Have all followers read weights, while this process reads its own share; nothing uses them yet.

        Args:
            asked: the weights, as `opening.weights_asked` says them.
            read: returns this process's arrays.

        Raises:
            HostRefused: one of them cannot, and says why.
            HostLost: one of them is gone.
            SessionClosed: the session was closed meanwhile.
            Others: what `read` raises.
        """
        with self._loading:
            self._loads += 1
            self._members.say({"say": "load", "session": self._number, "load": self._loads, **asked})
            weights = SharedWeights(read(), self._loads)
            self.wait(silent, self._loads)
            return weights

    def wait(self, report: Report, load: int = 0) -> None:
        """Wait until all followers have opened the model, or read weights.

        Args:
            load: the number of the weights; 0 for the model.

        Raises:
            HostRefused: one of them cannot, and says why.
            HostLost: one of them is gone.
            SessionClosed: the session was closed meanwhile.
        """
        ready: set[int] = set()
        while True:
            report(Progress("waiting for followers to open it", len(ready), len(self._members), "followers"))
            if len(ready) == len(self._members):
                return
            if self.closed:
                raise SessionClosed("the session was closed before all its processes had read the weights")
            answer = self._members.reply(LOOK_SECONDS)
            # Others are of what was given up.
            if answer is None or [answer[1].header.get(name) for name in ("session", "load")] != [self._number, load]:
                continue
            place, (said, _) = answer
            if said["say"] == "refused":
                raise HostRefused(f"process {place + 1} of {len(self._members) + 1} cannot follow: {said['why']}")
            ready.add(place)

    def send(self, order: Order | Use) -> None:
        """Tell all followers of an order, as the stepper does before it runs it here; never block."""
        self._members.say(*frame_of(order))

    async def watch(self) -> None:
        """Wait for the loss of a follower, for ever, and raise it.

        Raises:
            HostLost: a follower is gone.
        """
        raise await self._lost.receive()

    def reason(self, error: BaseException) -> BaseException:
        """Return why the session has failed: the loss of a follower, if there is one, else the error.

        The followers end in any case: some may be within an order that this process has not run.
        """
        lost = self._members.lost(NOTICE_SECONDS)
        if lost is None:
            self._members.give_up(f"a session over these hosts has failed ({type(error).__name__}: {error})")
        return lost or error

    def close(self) -> None:
        """Tell all followers that the session has ended."""
        if not self.closed:
            self.closed = True
            self._members.say({"say": "close"})
