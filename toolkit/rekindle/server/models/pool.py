"""Several models in one server. A model opens for the first request, and closes when idle or in the way."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import Protocol

import anyio
from anyio.to_thread import run_sync

from rekindle.core.errors import RekindleError
from rekindle.server.errors import ApiError
from rekindle.server.models.served import ModelCard, ServedModel, unknown_model
from rekindle.server.models.session import ServedSession
from rekindle.server.tracing.log import LOG


class ModelSource(Protocol):
    """A model that a server can open."""

    @property
    def aliases(self) -> Sequence[str]:
        """The other names of the model for clients."""
        ...

    @property
    def adapters(self) -> Sequence[str]:
        """The names of the adapters to open with the model."""
        ...

    def share(self) -> float:
        """Return the part of the devices' memory for the model, by the memory plan; blocks."""
        ...

    async def open(self) -> ServedSession:
        """Open the model."""
        ...


@dataclass(slots=True)
class OpenModel:
    """An open model of a pool.

    Attributes:
        model: the model.
        share: the part of the devices' memory.
        users: the number of requests in service.
        idle_since: the time of the last end of a request, on the clock of the event loop.
        leaving: the number of requests for other models that wait for the last user, to close the model.
    """

    model: ServedModel
    share: float
    users: int = 0
    idle_since: float = 0.0
    leaving: int = 0

    @property
    def is_usable(self) -> bool:
        """True if new requests may use the model."""
        return not self.leaving and self.model.session.error is None

    @property
    def order(self) -> tuple[bool, bool, float]:
        """The place in the order of leaving: idle models first, and no second busy one before the first has left."""
        return self.users > 0, not self.leaving, self.idle_since

    @property
    def may_close(self) -> bool:
        """True if the model may close when idle. A sleeping model stays: a request would open a closed one awake."""
        return not (self.users or self.leaving or self.model.session.asleep)


class ModelPool:
    """Models of a server that are open while requests use them.

    One model opens or closes at a time. To make room for a model, the models idle for the longest time close first, and
    a busy one gets no more requests until it has closed. Meanwhile, models with enough room open. Clients may leave the
    queue at any time, and an opening goes on without its client.

    Args:
        sources: the models by their names for clients; a request without a name is for the first one.
        keep_alive: the seconds until an idle model closes; infinity for never.
        room: the part of the devices' memory for all models together.
    """

    def __init__(self, sources: Mapping[str, ModelSource], keep_alive: float, room: float):
        self._sources, self._keep_alive, self._room = sources, keep_alive, room
        self._since = int(time())
        self._open: dict[str, OpenModel] = {}
        self._turn = anyio.Lock()
        self._change = anyio.Event()

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """See `Models`; opens the model if it is closed.

        Raises:
            ApiError: no model has this name, or the model cannot be opened.
        """
        base = next(iter(self._sources)) if name is None else self.base_of(name)
        entry = await self._hold(base)
        try:
            yield entry.model.alias(name or base)
        finally:
            self._release(entry)

    @asynccontextmanager
    async def use_open(self, base: str) -> AsyncIterator[ServedModel | None]:
        """See `Models`. A model that closes after its requests counts as closed."""
        entry = self._open.get(base)
        if entry is None or not entry.is_usable:
            yield None
            return
        entry.users += 1
        try:
            yield entry.model
        finally:
            self._release(entry)

    @property
    def bases(self) -> Sequence[str]:
        """See `Models`."""
        return list(self._sources)

    def base_of(self, name: str) -> str:
        """See `Models`."""
        if name in self._sources:  # even if an adapter of another model has this name
            return name
        for card in self._cards():
            if card.name == name:
                return card.base
        raise unknown_model(name, [card.name for card in self._cards()])

    def open_models(self) -> Sequence[ServedModel]:
        """See `Models`."""
        return [entry.model for entry in self._open.values() if entry.model.session.error is None]

    def cards(self) -> Sequence[ModelCard]:
        """See `Models`."""
        return list(self._cards())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Close idle models during a block, and all models at its end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._close_idle)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for base in list(self._open):
                    await self._close(base)

    def _cards(self) -> Iterator[ModelCard]:
        for base, source in self._sources.items():
            entry = self._open.get(base)
            longest = None if entry is None else entry.model.longest
            own = (base, *source.aliases)
            names = [*own, *source.adapters] if entry is None else entry.model.names
            for name in dict.fromkeys(names):
                yield ModelCard(name, base, name not in own, self._since, longest)

    async def _hold(self, base: str) -> OpenModel:
        """Return an open model with one more user.

        The turn is for opening and closing alone. A request waits outside of it for the last user of a model in its
        way, so a model with enough room opens meanwhile.
        """
        entry = self._open.get(base)
        if entry is not None and entry.is_usable:
            entry.users += 1
            return entry
        share: float | None = None
        victim: OpenModel | None = None
        try:
            while True:
                async with self._turn:
                    entry = self._open.get(base)  # another request may have opened it meanwhile
                    if entry is not None and entry.is_usable:
                        entry.users += 1
                        return entry
                    if entry is not None and entry.model.session.error is not None:
                        await self._close(base)
                        entry = None
                    if entry is None:
                        share = await self._share(base) if share is None else share
                        victim = self._swap(victim, await self._make_room(share))
                        if victim is None:
                            entry = await self._open_model(base, share)
                            entry.users += 1
                            return entry
                    change = self._change
                await change.wait()
        finally:
            self._swap(victim, None)

    def _swap(self, victim: OpenModel | None, other: OpenModel | None) -> OpenModel | None:
        """Let another model leave in place of one, and return it."""
        if other is not victim:  # else two requests with the same victim would wake each other for ever
            if other is not None:
                other.leaving += 1
            if victim is not None:
                victim.leaving -= 1
                self._tell()
        return other

    async def _share(self, base: str) -> float:
        try:
            return await run_sync(self._sources[base].share)
        except RekindleError as error:
            raise _not_opened(base, error) from error

    async def _open_model(self, base: str, share: float) -> OpenModel:
        source = self._sources[base]
        try:
            LOG.info("opening %s", base)
            with anyio.CancelScope(shield=True):  # a client that leaves may ask again, and others may wait
                session = await source.open()
        except RekindleError as error:
            raise _not_opened(base, error) from error
        model = ServedModel(session, base, base, self._since, source.aliases)
        entry = OpenModel(model, share, idle_since=anyio.current_time())
        self._open[base] = entry
        self._tell()
        return entry

    async def _make_room(self, share: float) -> OpenModel | None:
        """Close idle models until a share of the memory is free, and return the busy model to leave next, if any."""
        while self._open and share + sum(entry.share for entry in self._open.values()) > self._room:
            base, entry = min(self._open.items(), key=lambda item: item[1].order)
            if entry.users:
                return entry
            await self._close(base)
        return None

    async def _close(self, base: str) -> None:
        entry = self._open.pop(base)
        self._tell()
        LOG.info("closing %s", base)
        with anyio.CancelScope(shield=True):  # the next model needs the memory
            try:
                await entry.model.session.close()
            except RekindleError as error:
                LOG.error("%s did not close in order: %s", base, error)

    async def _close_idle(self) -> None:
        """Close each model once it was idle for `keep_alive` seconds."""
        while True:
            change, now = self._change, anyio.current_time()
            idle = {base: entry for base, entry in self._open.items() if entry.may_close}
            ends = {base: entry.idle_since + self._keep_alive for base, entry in idle.items()}
            for base in [base for base, end in ends.items() if end <= now]:
                async with self._turn:
                    entry = self._open.get(base)
                    if entry is idle[base] and entry.may_close and entry.idle_since + self._keep_alive <= now:
                        await self._close(base)
            later = [end - now for end in ends.values() if end > now]
            with anyio.move_on_after(min(later, default=float("inf"))):
                await change.wait()

    def _release(self, entry: OpenModel) -> None:
        """Note the end of a request."""
        entry.users -= 1
        entry.idle_since = anyio.current_time()
        self._tell()

    def _tell(self) -> None:
        """Wake the tasks that wait for a change of users or of open models."""
        self._change.set()
        self._change = anyio.Event()


def _not_opened(base: str, error: RekindleError) -> ApiError:
    LOG.error("%s did not open: %s", base, error)
    return ApiError(503, f"the model {base!r} cannot be opened: {error}", "model_not_opened")
