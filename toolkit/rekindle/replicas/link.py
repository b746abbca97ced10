"""The link to one replica: what goes there in parcels, and the stream of what comes."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

import anyio

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.errors import EngineFailed, InvalidRequest, ReplicaLost
from rekindle.core.messages import Found, Lost, Message, NewWeights, Received, Rejected, ToLane
from rekindle.core.routing.remote import RemoteLane
from rekindle.replicas import cluster
from rekindle.replicas.status import Attached

LOG = logging.getLogger("rekindle.replicas")
T = TypeVar("T")
Post = Callable[[Message], None]

HEARTBEAT_SECONDS = 4.0
"""How often a replica hears of a session that sends nothing."""
RETRY_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
"""How long a lost replica is waited for until it counts as lost for good."""
NO_TICKET = -1
"""The number of an exchange of weights that nobody waits for."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Loaded:
    """Weights that replicas have read, and can read again.

    Attributes:
        number: their name in each replica.
        source: what `update_weights` was given, as `load` of a replica takes it.
    """

    number: int
    source: Any


class Link:
    """The way of one lane to its replica; see `rekindle.core.routing.remote.Link`.

    Args:
        actor: the replica.
        lane: the number of the lane.
        session: the number of the session in the replica.
    """

    def __init__(self, actor: Any, lane: int, session: int):
        self.actor = actor
        self._lane, self._session = lane, session
        self._box: Mailbox[Message] = Mailbox()
        self._parcels = 0
        self._life = 0
        self._up = True

    def send(self, message: Message) -> None:
        """Put a message into the next parcel; from the loss of the replica until `resume`, drop it."""
        if not self._up:
            return
        if isinstance(message, NewWeights):
            message = _by_number(message)
        self._box.put(message)

    def resume(self, life: int) -> None:
        """Send messages again: the lane has heard of all losses but those after this life of the replica."""
        self._up = life == self._life

    def look(self, at: Callable[[Any], T]) -> T:
        """Return what `at` says of the replica's prefix trees; blocks. Raises as `cluster.answers`."""
        answer: T
        (answer,) = cluster.answers([self.actor.look.remote(at)])
        return answer

    def detach(self) -> None:
        """End all that the session has in the replica, without waiting for it."""
        self.actor.detach.options(num_returns=0).remote(self._session)

    async def serve(self, lane: RemoteLane, post: Post) -> None:
        """Send parcels, and post what comes, for as long as the replica lives or comes back."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_parcels, post)
            error = await self._listen(post)
            while True:
                self._up = False
                self._life += 1
                LOG.warning("lane %d is lost; its requests go on elsewhere, or when it is back: %s", self._lane, error)
                post(ToLane(self._lane, Lost(error)))
                try:
                    loaded = await self._come_back(lane)
                except Exception as final:
                    LOG.warning("lane %d is lost for good: %s", self._lane, final)
                    post(ToLane(self._lane, Lost(final, for_good=True)))
                    break
                LOG.warning("lane %d is back", self._lane)
                post(ToLane(self._lane, Found(self._life, loaded)))
                error = await self._listen(post)
            tasks.cancel_scope.cancel()

    async def _send_parcels(self, post: Post) -> None:
        """Send what there is, all at once, and nothing from time to time so that the session counts as alive."""
        while True:
            messages: list[Message] = []
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                messages.append(await self._box.receive())
            while (message := self._box.take()) is not None:
                messages.append(message)
            try:
                self._send(messages)
            except Exception as error:  # one of them cannot be pickled
                for each in messages:
                    try:
                        self._send([each])
                    except Exception:
                        self._refuse(each, error, post)

    def _send(self, messages: Sequence[Message]) -> None:
        self.actor.take.options(num_returns=0).remote(self._session, self._parcels, messages)
        self._parcels += 1

    def _refuse(self, message: Message, error: Exception, post: Post) -> None:
        """Answer for the replica that a request cannot be sent there."""
        refused = InvalidRequest(f"the request cannot be sent to a replica in another process: {error}")
        rejected = tuple(Rejected(request_id, refused) for request_id in message.requests)
        post(ToLane(self._lane, Received(rejected)))

    async def _listen(self, post: Post) -> Exception:
        """Post what comes; return why nothing more does."""
        try:
            stream = self.actor.outbox.options(num_returns="streaming").remote(self._session)
            with cluster.own_errors():
                async for item in stream:
                    post(ToLane(self._lane, await item))
        except Exception as error:  # any, for no error of a replica may end the session
            return error
        return ReplicaLost("the replica had not heard of this session for a while, and ended its requests")

    async def _come_back(self, lane: RemoteLane) -> list[Loaded] | None:
        """Attach the session to the replica once it is there again, and return the weights that it was given.

        Raises:
            Exception: it never will be.
        """
        until = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with cluster.own_errors():
                    attached: Attached = await self.actor.attach.remote()
                    loaded = await self._load(lane)
                break
            except Exception as error:
                ending = isinstance(error, EngineFailed)  # of which the process ends, and is started again
                if not (ending or cluster.is_lost(error)) or cluster.is_over(error) or monotonic() > until:
                    raise
            await anyio.sleep(RETRY_SECONDS)
        while self._box.take() is not None:
            pass
        self._session, self._parcels = attached.number, 0
        if loaded is not None:
            self._box.put(_by_number(NewWeights(NO_TICKET, loaded, fail=False)))  # before any request
        return loaded

    async def _load(self, lane: RemoteLane) -> list[Loaded] | None:
        """Have the replica read the weights that the lane has by now; return them."""
        loaded: list[Loaded] | None = None
        while loaded is not lane.weights:
            loaded = lane.weights
            for each in loaded or ():
                await self.actor.load.remote(each.number, each.source)
        return loaded


def _by_number(message: NewWeights) -> NewWeights:
    """Return the message as a replica takes it, with the number of the weights that it has read."""
    return replace(message, weights=[each.number for each in message.weights])
