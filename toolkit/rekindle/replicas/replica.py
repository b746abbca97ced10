"""The replica: a whole engine in an actor of Ray, for the sessions that attach themselves to it."""

import asyncio
import os
import socket
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from rekindle.core.checkpoints.weights import Weights
from rekindle.core.concurrency.feed import TO_THE_END
from rekindle.core.concurrency.progress import Report
from rekindle.core.engine.building import build
from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.engine.thread import EngineThread
from rekindle.core.errors import EngineFailed, SessionError
from rekindle.core.messages import CacheSaved, Lost, Message, NewWeights, Received, SaveCache, WeightsUsed
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.replicas import cluster
from rekindle.replicas.attachments import SPAN, Attachment, Attachments
from rekindle.replicas.recipe import Recipe
from rekindle.replicas.status import About, Attached, CachedPage, ReplicaStatus

T = TypeVar("T")

STATUS_SECONDS = 0.05
"""How long after something was told the status follows."""
IDLE_SECONDS = 1.0
"""How often an idle replica looks whether its status has changed."""
SAVING_SECONDS = 3.0
"""How long a replica that is closed goes on writing cached pages to disk."""
SILENCE_SECONDS = 20.0
"""A session that is not heard of for so long is detached; its process is gone, or stopped."""


class Replica:
    """An engine for sessions in other processes. All methods but the constructor are called by Ray, on one loop.

    Args:
        recipe: what it is made of.
    """

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self._attachments = Attachments()
        self._weights: dict[int, Any] = {}
        self._exchanged = False
        self._since = time.time()
        self._engine = EngineThread(self._build, self._say, self._end)

    async def about(self) -> About:
        """Return what the replica is, once it has opened the model; raises as `open` does."""
        loaded_engine = await self._opened()
        await self._detach_silent()
        return About(
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
            exchanged=self._exchanged,
        )

    async def attach(self) -> Attached:
        """Attach a session; raises as `about`."""
        about, (lane,) = await self.about(), (await self._opened()).lanes
        pages = lane.scheduler.look(lambda trees: tuple(_pages(trees)))
        return Attached(self._attachments.add().number, about, pages)

    async def detach(self, session: int) -> None:
        """End all that a session has here."""
        for message in self._attachments.remove(session):
            with suppress(SessionError):
                self._engine.post(message)

    async def _detach_silent(self) -> None:
        for session in self._attachments.silent(SILENCE_SECONDS):
            await self.detach(session)

    async def take(self, session: int, parcel: int, messages: Sequence[Message]) -> None:
        """Take messages of a session to the engine, in the order of the numbers of their parcels."""
        attachment = self._attachments.get(session)
        if attachment is not None:
            for message in attachment.in_turn(parcel, messages):
                if isinstance(message, NewWeights) and message.weights[0] not in self._weights:
                    await self.detach(session)  # it was lost when they were loaded, and loads them when it is back
                    return
                self._post(attachment, message)

    async def outbox(self, session: int) -> AsyncIterator[Received]:
        """Yield all that the engine has to tell a session, as long as that is heard of; raises the engine's error."""
        told: ReplicaStatus | None = None
        wait, looked = 0.0, 0.0
        self._attachments.hear(session)
        while (attachment := self._attachments.get(session)) is not None:
            messages = await _all_of(attachment, wait)
            for message in messages:
                if isinstance(message, Lost):
                    raise message.error
            now, status = time.monotonic(), told
            if not messages or now - looked >= STATUS_SECONDS:
                status, looked = ReplicaStatus.of(self._engine, await self._opened()), now
            if messages or status != told:
                yield Received(tuple(messages), None if status == told else status)
            told, wait = status, STATUS_SECONDS if messages else IDLE_SECONDS
            await self._detach_silent()

    async def load(self, number: int, weights: Weights) -> None:
        """Read weights, which a later `NewWeights` names by this number; raises as `LoadedEngine.load`."""
        loaded_engine = await self._opened()
        self._weights[number] = await asyncio.to_thread(loaded_engine.load, weights)

    async def forget(self, number: int) -> None:
        """Delete weights that nobody will use."""
        self._weights.pop(number, None)

    async def look(self, at: Callable[[Sequence[PrefixTree]], T]) -> T:
        """Return what a function says of the prefix trees."""
        (lane,) = (await self._opened()).lanes
        return lane.scheduler.look(at)

    async def precompiled(self) -> None:
        """Wait until all programs that are made ahead of need are ready and stored; raises the error of one."""
        programs = (await self._opened()).programs
        for each in (*programs.preparing, *programs.stored()):
            await asyncio.wrap_future(each)

    async def close(self) -> None:
        """Write what is cached to disk, for a while at most, and stop the engine."""
        if (await self._opened()).limits.pool.snapshots:
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
        return build(
            recipe.model,
            recipe.settings,
            report,
            compose=lambda actors: replace(actors, detokenizer=_Teller(self._say)),
            family=recipe.family,
            revision=recipe.revision,
            chat_template=recipe.chat_template,
        )

    async def _opened(self) -> LoadedEngine:
        await self._engine.opening.wait(TO_THE_END)
        if self._engine.error is not None:
            raise self._engine.error.with_traceback(None)
        assert self._engine.loaded_engine is not None, "an engine that serves is loaded"
        return self._engine.loaded_engine

    def _say(self, message: Message) -> None:
        """Pass on what the engine says, on its thread."""
        if isinstance(message, WeightsUsed):
            self._exchanged = True
        self._attachments.tell(message)

    def _end(self, error: Exception) -> None:
        self._attachments.tell_all(Lost(error))
        if isinstance(error, EngineFailed):  # only another process makes a new engine, and Ray starts one
            cluster.leave()

    def _post(self, attachment: Attachment, message: Message) -> None:
        """Give the engine a message of a session, with what that cannot send."""
        if isinstance(message, NewWeights):
            (number,) = message.weights
            message = replace(message, weights=self._weights.pop(number))
        attachment.sent(message)
        with suppress(SessionError):  # of which the session is told
            self._engine.post(message)


class _Teller:
    """The detokenizer of a replica, which tells sessions what they make texts of.

    Args:
        say: takes the outputs.
    """

    def __init__(self, say: Callable[[Message], None]):
        self._say = say

    def handle(self, message: Message) -> list[Message]:
        """Pass outputs on."""
        self._say(message)
        return []


async def _all_of(attachment: Attachment, seconds: float) -> list[Message]:
    """Return all that waits for a session, after so many seconds if nothing does."""
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
                parent = None if node.parent is None else places.get(node.parent)
                places[node] = len(places)
                yield CachedPage(parent, namespace, tuple(array("i", node.key).tolist()))
