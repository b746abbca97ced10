"""The link to one replica: outgoing parcels of messages, and a stream of incoming messages."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

import anyio

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.errors import EngineFailed, InvalidRequest, ReplicaLost
from rekindle.core.messages import Lost, Message, NewWeights, Received, Rejected, ReplicaFound, ToLane, WeightsReplaced
from rekindle.replicas import cluster
from rekindle.replicas.remote import RemoteLane
from rekindle.replicas.status import AttachReply

LOG = logging.getLogger("rekindle.replicas")
T = TypeVar("T")
Post = Callable[[Message], None]

HEARTBEAT_SECONDS = 4.0
"""Seconds between signs of life of an idle session."""
RETRY_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
"""Seconds to wait for a lost replica until it counts as lost for good."""
NO_TICKET = -1
"""Ticket of a weight update for which no caller waits."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class LoadedWeights:
    """Weights read by replicas, with their source for reading them again.

    Attributes:
        number: the number of the weights in each replica.
        source: the argument of `update_weights`, in the form for `Replica.load`.
        digest: the digest of their content, once a replica has read them.
    """

    number: int
    source: Any
    digest: str = ""


class ReplicaLink:
    """The link of one lane to its replica; see `rekindle.replicas.remote.LaneLink`.

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
        """Put a message into the next parcel; between the loss of the replica and `resume`, drop the message."""
        if not self._up:
            return
        if isinstance(message, NewWeights):
            message = _by_number(message)
        self._box.put(message)

    def resume(self, life: int) -> None:
        """Send messages again, unless the replica was lost again since `ReplicaFound` with this `life`."""
        self._up = life == self._life

    def look(self, at: Callable[[Any], T]) -> T:
        """Return the result of `at` for the replica's prefix trees; blocks. Raises as `cluster.answers`."""
        answer: T
        (answer,) = cluster.answers([self.actor.look.remote(at)])
        return answer

    def detach(self) -> None:
        """Detach the session from the replica and cancel its requests, without waiting."""
        self.actor.detach.options(num_returns=0).remote(self._session)

    async def serve(self, lane: RemoteLane, post: Post) -> None:
        """Send parcels and post incoming messages, until the replica is lost for good."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_parcels, post)
            error = await self._listen(post)
            while True:
                self._up = False
                self._life += 1
                LOG.warning("lane %d is lost; its requests continue elsewhere or on its return: %s", self._lane, error)
                post(ToLane(self._lane, Lost(error)))
                try:
                    weights = await self._come_back(lane, post)
                except Exception as final:
                    LOG.warning("lane %d is lost for good: %s", self._lane, final)
                    post(ToLane(self._lane, Lost(final, for_good=True)))
                    break
                LOG.warning("lane %d is back", self._lane)
                post(ToLane(self._lane, ReplicaFound(self._life, weights)))
                error = await self._listen(post)
            tasks.cancel_scope.cancel()

    async def _send_parcels(self, post: Post) -> None:
        """Send all waiting messages as one parcel, and an empty parcel as a heartbeat when idle."""
        while True:
            messages: list[Message] = []
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                messages.append(await self._box.receive())
            while (message := self._box.take()) is not None:
                messages.append(message)
            try:
                self._send(messages)
            except Exception as error:  # a message cannot be pickled
                for each in messages:
                    try:
                        self._send([each])
                    except Exception:
                        self._refuse(each, error, post)

    def _send(self, messages: Sequence[Message]) -> None:
        self.actor.take.options(num_returns=0).remote(self._session, self._parcels, messages)
        self._parcels += 1

    def _refuse(self, message: Message, error: Exception, post: Post) -> None:
        """Reject the requests of an unsendable message, on behalf of the replica."""
        reason = InvalidRequest(f"the request cannot be sent to a replica in another process: {error}")
        rejections = tuple(Rejected(request_id, reason) for request_id in message.requests)
        post(ToLane(self._lane, Received(rejections)))

    async def _listen(self, post: Post) -> Exception:
        """Post incoming messages; return the reason for the end of the stream."""
        try:
            stream = self.actor.outbox.options(num_returns="streaming").remote(self._session)
            with cluster.rekindle_errors():
                async for item in stream:
                    post(ToLane(self._lane, await item))
        except Exception as error:  # any: an error of a replica must not end the session
            return error
        return ReplicaLost("the replica had no sign of life from this session for a while, and ended its requests")

    async def _come_back(self, lane: RemoteLane, post: Post) -> list[LoadedWeights] | None:
        """Attach the session to the replica after its restart, and return the weights sent to it.

        Raises:
            Exception: the replica will not return.
        """
        until = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with cluster.rekindle_errors():
                    reply: AttachReply = await self.actor.attach.remote()
                    weights = await self._load(lane)
                break
            except Exception as error:
                restarts = isinstance(error, EngineFailed)  # the process ends, and Ray starts it again
                if not (restarts or cluster.is_lost(error)) or cluster.is_over(error) or monotonic() > until:
                    raise
            await anyio.sleep(RETRY_SECONDS)
        while self._box.take() is not None:
            pass
        self._session, self._parcels = reply.number, 0
        if weights is None:  # those of another session may be in use there, or be lost
            about = reply.about
            post(ToLane(self._lane, Received((WeightsReplaced(about.weights_version, about.weights_digest),))))
        else:
            exchange = NewWeights(NO_TICKET, weights, version=lane.weights_version)
            self._box.put(_by_number(exchange))  # before any request
        return weights

    async def _load(self, lane: RemoteLane) -> list[LoadedWeights] | None:
        """Make the replica read the current weights of the lane; return them."""
        weights: list[LoadedWeights] | None = None
        while weights is not lane.weights:
            weights = lane.weights
            for each in weights or ():
                await self.actor.load.remote(each.number, each.source, each.digest)
        return weights


def _by_number(message: NewWeights) -> NewWeights:
    """Return the message with the numbers of weights instead of the weights, as a replica expects."""
    return replace(message, weights=[each.number for each in message.weights])
