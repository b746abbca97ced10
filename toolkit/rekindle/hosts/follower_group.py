"""Followers of one session, driven by its engine."""

import threading
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import jax

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.concurrency.progress import Progress, Report, silent
from rekindle.core.device.orders import Order, SharedWeights, Use
from rekindle.core.errors import HostLost, HostRefused, SessionClosed
from rekindle.formats.checkpoints.weights import Weights
from rekindle.hosts.members import Members
from rekindle.hosts.opening import model_request, weights_request
from rekindle.hosts.wire import frame_of
from rekindle.settings.engine import Settings

POLL_SECONDS = 0.1
"""Seconds between checks, in a wait for followers, that the session is still open."""
NOTICE_SECONDS = 2.0
"""Seconds to wait for the loss of a follower after an error, since a broken collective is often noticed first."""


class FollowerGroup:
    """All followers, in one session; a context manager, closed at its end.

    Args:
        members: the followers.
        number: the number of the session.

    Attributes:
        closed: whether the session has ended.
    """

    def __init__(self, members: Members, number: int):
        self._members, self._number = members, number
        self._losses: Mailbox[HostLost] = Mailbox()
        self._loads = 0
        self._load_lock = threading.Lock()
        self.closed = False
        members.when_lost(self._losses.put)

    def __enter__(self) -> "FollowerGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, request: Mapping[str, Any]) -> None:
        """Send a request to open a model, from `opening.model_request`, to all followers."""
        self._members.say({"say": "open", "session": self._number, **request})

    def open_model(
        self, model: str | PathLike[str], revision: str | None, settings: Settings, blueprint: Blueprint
    ) -> None:
        """Make all followers open a model, with fully resolved settings.

        Raises:
            OSError: a weight file cannot be read.
        """
        self.open(model_request(model, revision, settings, blueprint))

    def load_weights(self, weights: Weights, read_shard: Callable[[], list[jax.Array]]) -> SharedWeights:
        """Make all followers read weights, as `load`; raises as `load` and `weights_request`."""
        return self.load(weights_request(weights), read_shard)

    def load(self, request: Mapping[str, Any], read_shard: Callable[[], list[jax.Array]]) -> SharedWeights:
        """Make all followers read weights while this process reads its shard. The weights are not used yet.

        Args:
            request: the weights, from `opening.weights_request`.
            read_shard: a function to read this process's shard; returns its arrays.

        Raises:
            HostRefused: a follower cannot read the weights; the message has its reason.
            HostLost: a follower is gone.
            SessionClosed: the session was closed meanwhile.
            Others: errors of `read_shard`.
        """
        with self._load_lock:
            self._loads += 1
            self._members.say({"say": "load", "session": self._number, "load": self._loads, **request})
            weights = SharedWeights(read_shard(), self._loads)
            self.wait(silent, self._loads)
            return weights

    def wait(self, report: Report, load: int = 0) -> None:
        """Wait until all followers have opened the model, or read weights.

        Args:
            report: the callback for progress.
            load: the number of the weights; 0 for the model.

        Raises:
            HostRefused: a follower cannot open or read them; the message has its reason.
            HostLost: a follower is gone.
            SessionClosed: the session was closed meanwhile.
        """
        ready: set[int] = set()
        while True:
            report(Progress("waiting for followers to open it", len(ready), len(self._members), "followers"))
            if len(ready) == len(self._members):
                return
            if self.closed:
                raise SessionClosed("the session was closed before all its processes had read the weights")
            answer = self._members.reply(POLL_SECONDS)
            # Other replies belong to an abandoned request.
            if answer is None or [answer[1].header.get(name) for name in ("session", "load")] != [self._number, load]:
                continue
            place, (header, _) = answer
            if header["say"] == "refused":
                raise HostRefused(f"process {place + 1} of {len(self._members) + 1} cannot follow: {header['why']}")
            ready.add(place)

    def send(self, order: Order | Use) -> None:
        """Send an order to all followers, before the stepper runs it here; never block."""
        self._members.say(*frame_of(order))

    async def watch(self) -> None:
        """Wait for the loss of a follower and raise it; never returns.

        Raises:
            HostLost: a follower is gone.
        """
        raise await self._losses.receive()

    def reason(self, error: BaseException) -> BaseException:
        """Return the cause of the session's failure: the loss of a follower, or else the error.

        All followers are ended in either case, since one may be running an order that this process has not run.
        """
        loss = self._members.loss(NOTICE_SECONDS)
        if loss is None:
            self._members.give_up(f"a session over these hosts has failed ({type(error).__name__}: {error})")
        return loss or error

    def close(self) -> None:
        """End the session on all followers."""
        if not self.closed:
            self.closed = True
            self._members.say({"say": "close"})
