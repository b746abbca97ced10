"""Several models in one server. A model opens for the first request, and closes when idle or in the way."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import time
from typing import Protocol

import anyio
from anyio.to_thread import run_sync

from rekindle.core.errors import RekindleError
from rekindle.server.common.errors import ApiError
from rekindle.server.models.open_model import OpenModel
from rekindle.server.models.served import ModelCard, ServedModel, card_of, cards_of
from rekindle.server.models.session import ServedSession
from rekindle.server.tracing.log import LOG, without_paths


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
        self._adapters: dict[str, dict[str, str | None]] = {base: {} for base in sources}
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
        """See `Models`. A leaving model counts as closed."""
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
        return card_of(self.cards(), name).base

    def open_models(self) -> Sequence[ServedModel]:
        """See `Models`."""
        return [entry.model for entry in self._open.values() if entry.model.session.error is None]

    def cards(self) -> Sequence[ModelCard]:
        """See `Models`."""
        return [card for base in self._sources for card in self._cards_of(base)]

    def keep(self, base: str, seconds: float) -> bool:
        """See `Models`."""
        entry = self._open.get(base)
        if entry is not None:
            entry.keep_alive = seconds
            self._tell()
        return True

    def closes_in(self, base: str) -> float:
        """See `Models`."""
        entry = self._open.get(base)
        return 0.0 if entry is None else entry.end - anyio.current_time()

    def note_adapter(self, base: str, name: str, path: str | None) -> None:
        """See `Models`. The adapters are those of the next opening too."""
        changes = self._adapters[base]
        if path is not None:
            changes[name] = os.path.abspath(os.path.expanduser(path))
        elif name in self._sources[base].adapters:
            changes[name] = None
        else:
            changes.pop(name, None)

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

    def _cards_of(self, base: str) -> list[ModelCard]:
        entry = self._open.get(base)
        if entry is not None:
            return entry.model.cards
        return cards_of((base, *self._sources[base].aliases), self._adapters_of(base), self._since, None)

    def _adapters_of(self, base: str) -> Sequence[str]:
        """Return the names of the adapters of a closed model."""
        changes = self._adapters[base]
        names = dict.fromkeys((*self._sources[base].adapters, *changes))
        return [name for name in names if changes.get(name, "") is not None]

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
                try:
                    await self._change_adapters(base, session)
                except BaseException:  # no request will find the session
                    await _close(base, session)
                    raise
        except RekindleError as error:
            raise _not_opened(base, error) from error
        model = ServedModel(session, base, base, self._since, source.aliases)
        entry = OpenModel(model, share, self._keep_alive, idle_since=anyio.current_time())
        self._open[base] = entry
        self._tell()
        return entry

    async def _change_adapters(self, base: str, session: ServedSession) -> None:
        """Repeat the changes of adapters by administrators, except those that fail."""
        changes = self._adapters[base]
        for name, path in list(changes.items()):
            if path is None:
                continue
            try:
                await session.add_adapter(name, path)
            except RekindleError as error:
                LOG.error("%s opened without its adapter %s: %s", base, name, without_paths(error))
                if changes.get(name) == path:
                    del changes[name]
        for name in set(session.adapters).difference(self._adapters_of(base)):  # some were removed meanwhile
            await session.remove_adapter(name)

    async def _make_room(self, share: float) -> OpenModel | None:
        """Close idle models until a share of the memory is free, and return the busy model to leave next, if any."""
        while self._open and share + sum(entry.share for entry in self._open.values()) > self._room:
            base, entry = min(self._open.items(), key=lambda item: item[1].order)
            if entry.users:
                return entry
            if entry.has_new_weights:
                LOG.warning("%s closes for another model, and its new weights are lost", base)
            await self._close(base)
        return None

    async def _close(self, base: str) -> None:
        entry = self._open.pop(base)
        self._tell()
        await _close(base, entry.model.session)

    async def _close_idle(self) -> None:
        """Close each model once it was idle for its time."""
        while True:
            change, now = self._change, anyio.current_time()
            ends = {base: entry.end for base, entry in self._open.items()}
            for base in [base for base, end in ends.items() if end <= now]:
                async with self._turn:
                    entry = self._open.get(base)
                    if entry is not None and entry.end <= now:  # a request may have come, or another one closed it
                        await self._close(base)
            later = [end - now for end in ends.values() if end > now]
            with anyio.move_on_after(min(later, default=float("inf"))):
                await change.wait()

    def _release(self, entry: OpenModel) -> None:
        """Note the end of a request."""
        entry.users -= 1
        entry.idle_since = anyio.current_time()
        if not entry.users:
            self._tell()

    def _tell(self) -> None:
        """Wake the tasks that wait for the last user of a model, or for a change of open models."""
        self._change.set()
        self._change = anyio.Event()


async def _close(base: str, session: ServedSession) -> None:
    LOG.info("closing %s", base)
    with anyio.CancelScope(shield=True):  # the next model needs the memory
        try:
            await session.close()
        except Exception as error:  # the server goes on without the model
            LOG.error("%s did not close in order: %s", base, without_paths(error))


def _not_opened(base: str, error: RekindleError) -> ApiError:
    LOG.error("%s did not open: %s", base, without_paths(error))
    message = f"the model {base!r} cannot be opened; the log of the server has the reason"
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, "model_not_opened")
