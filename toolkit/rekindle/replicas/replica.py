"""Replica: a whole engine in a Ray actor, shared by the sessions attached to it."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rekindle.assembly.building import build
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.replicas import ReadWeights
from rekindle.assembly.thread import EngineThread
from rekindle.core.concurrency.feed import TO_THE_END
from rekindle.core.concurrency.progress import Report
from rekindle.core.errors import CheckpointError, EngineFailed, SessionError
from rekindle.core.messages import (
    CacheSaved,
    Lost,
    Message,
    NewWeights,
    Received,
    SaveCache,
    WeightsReplaced,
    WeightsUsed,
)
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.formats.checkpoints.weights import Weights
from rekindle.replicas import cluster
from rekindle.replicas.attachments import SPAN, AttachedSessions, Attachment
from rekindle.replicas.recipe import Recipe, content_of
from rekindle.replicas.status import AttachReply, CachedPage, ReplicaFacts, ReplicaStatus

T = TypeVar("T")

STATUS_SECONDS = 0.05
"""Seconds between a message to a session and the next update of the status."""
IDLE_SECONDS = 1.0
"""Seconds between checks for a changed status in an idle replica."""
SAVING_SECONDS = 3.0
"""Seconds for writing cached pages to disk before a replica closes."""
SILENCE_SECONDS = 20.0
"""Seconds without a sign of life until a session is detached, because its process seems to be gone or stopped."""


class Replica:
    """An engine for sessions in other processes. Ray calls all methods, except the constructor, on one event loop.

    Args:
        recipe: the arguments of `open`.
    """

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self._attachments = AttachedSessions()
        self._weights: dict[int, ReadWeights] = {}
        self._exchanges: dict[int, str] = {}  # digests of weights on their way to the engine, by ticket
        self._weights_version, self._weights_digest = 0, ""
        self._since = time.time()
        self._engine = EngineThread(self._build, self._deliver, self._end)

    async def about(self) -> ReplicaFacts:
        """Return the facts of the replica, once it has opened the model; raises as `open`."""
        loaded_engine = await self._wait_open()
        await self._detach_silent()
        return ReplicaFacts(
            model=self._recipe.model,
            digest=self._recipe.digest,
            limits=loaded_engine.limits,
            settings=loaded_engine.settings,
            deployment=loaded_engine.deployment,
            restored=loaded_engine.programs.restored(),
            status=ReplicaStatus.of(self._engine, loaded_engine),
            since=self._since,
            host=socket.gethostname(),
            process=os.getpid(),
            sessions=len(self._attachments),
            weights_version=self._weights_version,
            weights_digest=self._weights_digest or loaded_engine.weights_digest,
            identity=loaded_engine.identity.texts(),
        )

    async def attach(self) -> AttachReply:
        """Attach a session; raises as `about`."""
        about, (lane,) = await self.about(), (await self._wait_open()).lanes
        pages = lane.scheduler.look(lambda trees: tuple(_pages(trees)))
        return AttachReply(self._attachments.add().number, about, pages)

    async def detach(self, session: int) -> None:
        """Detach a session and cancel its requests."""
        for message in self._attachments.remove(session):
            with suppress(SessionError):
                self._engine.post(message)

    async def _detach_silent(self) -> None:
        for session in self._attachments.silent(SILENCE_SECONDS):
            await self.detach(session)

    async def take(self, session: int, parcel: int, messages: Sequence[Message]) -> None:
        """Post a parcel of a session's messages to the engine, in the order of the parcels' numbers."""
        attachment = self._attachments.get(session)
        if attachment is not None:
            for message in attachment.in_order(parcel, messages):
                if isinstance(message, NewWeights) and message.weights[0] not in self._weights:
                    await self.detach(session)  # a restart lost these weights; the link loads them again on attaching
                    return
                self._post(attachment, message)

    async def outbox(self, session: int) -> AsyncIterator[Received]:
        """Yield the engine's messages for a session, until the session is detached; raises the engine's error."""
        last: ReplicaStatus | None = None
        wait, checked_at = 0.0, 0.0
        self._attachments.touch(session)
        while (attachment := self._attachments.get(session)) is not None:
            messages = await _all_of(attachment, wait)
            for message in messages:
                if isinstance(message, Lost):
                    raise message.error
            now, status = time.monotonic(), last
            if not messages or now - checked_at >= STATUS_SECONDS:
                status, checked_at = ReplicaStatus.of(self._engine, await self._wait_open()), now
            if messages or status != last:
                yield Received(tuple(messages), None if status == last else status)
            last, wait = status, STATUS_SECONDS if messages else IDLE_SECONDS
            await self._detach_silent()

    async def load(self, number: int, weights: Weights, digest: str = "") -> str:
        """Read weights, for a later `NewWeights` with this number, and return the digest of their content.

        Args:
            number: the number.
            weights: as in `LoadedEngine.load`, whose errors it raises.
            digest: the expected digest; empty for any.

        Raises:
            CheckpointError: the weights have another digest.
        """
        new = await asyncio.to_thread((await self._wait_open()).load, weights)
        if digest not in ("", new.digest):
            raise CheckpointError(
                f"{weights!r:.80} has changed since update_weights read it, so a restarted replica cannot use the "
                "same weights: call update_weights again"
            )
        self._weights[number] = new
        return new.digest

    async def forget(self, number: int) -> None:
        """Delete unused weights."""
        self._weights.pop(number, None)

    async def look(self, at: Callable[[Sequence[PrefixTree]], T]) -> T:
        """Return the result of a function of the prefix trees."""
        (lane,) = (await self._wait_open()).lanes
        return lane.scheduler.look(at)

    async def wait_for_programs(self) -> None:
        """Wait until all programs prepared in advance are ready and stored; raises the first error."""
        programs = (await self._wait_open()).programs
        for each in (*programs.preparing, *programs.stored()):
            await asyncio.wrap_future(each)

    async def close(self) -> None:
        """Write cached pages to disk, for at most `SAVING_SECONDS`, and stop the engine."""
        if (await self._wait_open()).limits.pool.snapshots:
            saving = self._attachments.add()
            self._engine.post(SaveCache(saving.number * SPAN))
            until = time.monotonic() + SAVING_SECONDS
            while not any(isinstance(message, CacheSaved) for message in await _all_of(saving, IDLE_SECONDS)):
                if time.monotonic() > until:
                    break
        self._engine.stop()
        await self._engine.stopped.wait(TO_THE_END)

    # The engine

    def _build(self, report: Report) -> LoadedEngine:
        recipe = self._recipe
        loaded_engine = build(
            recipe.model,
            recipe.settings,
            report,
            compose=lambda actors: replace(actors, detokenizer=_OutputForwarder(self._deliver)),
            family=recipe.family,
            revision=recipe.revision,
            chat_template=recipe.chat_template,
        )
        if content_of(loaded_engine.checkpoint) != recipe.content:
            loaded_engine.free()
            raise CheckpointError(
                f"the files of {Path(recipe.model).name!r} are others here than for the session that started the "
                "replicas: another model has replaced them, or this machine has another copy. Bring the files back, "
                "or stop the replicas by `rekindle replicas stop` and open the new model"
            )
        return loaded_engine

    async def _wait_open(self) -> LoadedEngine:
        await self._engine.opening.wait(TO_THE_END)
        if self._engine.error is not None:
            raise self._engine.error.with_traceback(None)
        assert self._engine.loaded_engine is not None, "an engine that serves is loaded"
        return self._engine.loaded_engine

    def _deliver(self, message: Message) -> None:
        """Deliver a message of the engine to its sessions, on the engine's thread."""
        self._attachments.deliver(message)
        if isinstance(message, WeightsUsed):
            self._weights_version, self._weights_digest = message.version, self._exchanges.pop(message.ticket)
            replaced = WeightsReplaced(self._weights_version, self._weights_digest)
            self._attachments.broadcast(replaced, but=message.ticket // SPAN)

    def _end(self, error: Exception) -> None:
        self._attachments.broadcast(Lost(error))
        if isinstance(error, EngineFailed):  # a new engine needs a new process, started by Ray
            cluster.leave()

    def _post(self, attachment: Attachment, message: Message) -> None:
        """Post a session's message to the engine, with weights in place of their number."""
        if isinstance(message, NewWeights):
            (number,) = message.weights
            new = self._weights.pop(number)
            message, self._exchanges[message.ticket] = replace(message, weights=new.payload), new.digest
        attachment.record(message)
        with suppress(SessionError):  # the session receives the error too
            self._engine.post(message)


class _OutputForwarder:
    """Stand-in for the detokenizer in a replica: forwards outputs to the sessions, which detokenize.

    Args:
        forward: the function for outputs.
    """

    def __init__(self, forward: Callable[[Message], None]):
        self._deliver = forward

    def handle(self, message: Message) -> list[Message]:
        """Forward outputs."""
        self._deliver(message)
        return []


async def _all_of(attachment: Attachment, seconds: float) -> list[Message]:
    """Return all messages for a session, waiting at most `seconds` for the first."""
    messages: list[Message] = []
    with suppress(TimeoutError):
        messages.append(await asyncio.wait_for(attachment.box.receive(), seconds))
    while (message := attachment.box.take()) is not None:
        messages.append(message)
    return messages


def _pages(trees: Sequence[PrefixTree]) -> Iterator[CachedPage]:
    """Yield the cached pages of all groups."""
    places: dict[Node, int] = {}
    for tree in trees:
        for namespace in tree.roots.namespaces:
            for node in tree.walk(namespace):
                if node.is_state:
                    continue
                parent = None if node.parent is None else places.get(node.parent)
                places[node] = len(places)
                yield CachedPage(parent, namespace, node.key)
