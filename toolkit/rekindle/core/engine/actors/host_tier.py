"""The host tier: the actor with copies of cached pages in host memory; it also reads the disk tier."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from anyio import to_thread
from jax.sharding import Sharding

from rekindle.core.concurrency.warning import warn
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.errors import StorageError
from rekindle.core.messages import (
    Archive,
    Copy,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Offloaded,
    PagesStaged,
    StagePages,
    TakePages,
    Write,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.store.snapshot_store import SnapshotStore


class Copies(Protocol):
    """Copying of pages and states to the host and back. Both methods block: call them in a worker thread."""

    def keep(self, pages: Sequence[Any]) -> list[Any]:
        """Copy device arrays to host memory, each to separate memory, and return the entries."""

    def stage(self, entries: Sequence[Any]) -> list[Any]:
        """Copy entries to the device, and return the arrays."""


class DeviceCopies:
    """Copying between the devices of this process and their host.

    Args:
        staged: sharding of staged pages.
        host_memory: memory kind of entries, see `host_memory`; None keeps entries in numpy arrays, without a copy on
            CPUs.
    """

    def __init__(self, staged: Sharding, host_memory: str | None):
        self._device = staged
        self._host = None if host_memory is None else self._device.with_memory_kind(host_memory)

    def keep(self, pages: Sequence[jax.Array]) -> list[Any]:
        """See `Copies`."""
        return [np.asarray(page) for page in pages] if self._host is None else _put(pages, self._host)

    def stage(self, entries: Sequence[Any]) -> list[Any]:
        """See `Copies`."""
        return _put(entries, self._device)


class SharedCopies:
    """Copying of pages sharded over several processes: whole pages, by way of the host."""

    def keep(self, pages: Sequence[jax.Array]) -> list[Any]:
        """See `Copies`."""
        return [np.asarray(page) for page in pages]

    def stage(self, entries: Sequence[Any]) -> list[Any]:
        """See `Copies`."""
        return list(entries)


def _put(arrays: Sequence[Any], where: Sharding) -> list[Any]:
    copies: list[Any] = jax.block_until_ready([jax.device_put(array, where) for array in arrays])
    return copies


def _read(disk: SnapshotStore, records: Sequence[int]) -> Sequence[Any | None]:
    try:
        return disk.read(records)
    except StorageError as error:  # the directory has become unsafe since it was opened
        warn(f"cached pages are not read from disk: {error}")
        return [None] * len(records)


def host_memory(device: jax.Device) -> str | None:
    """Return the memory kind for a device's pages on the host: "pinned_host" if supported, else None; None on CPUs.

    A device reads pinned memory without the CPU's help.
    """
    kinds = {memory.kind for memory in device.addressable_memories()}
    return "pinned_host" if device.platform != "cpu" and "pinned_host" in kinds else None


class HostTier:
    """The host tier actor: keeps copies of pages and states in host memory, and stages them on the device.

    The scheduler numbers the copies, called entries, and decides when to drop them.

    Args:
        capacity_bytes: hard limit for all entries together.
        copies: copies pages and states, in a worker thread.
        disk: store of pages on disk, read in a worker thread; None without a disk tier.
    """

    def __init__(self, capacity_bytes: int, copies: Copies, disk: SnapshotStore | None = None):
        self._capacity_bytes = capacity_bytes
        self._copies = copies
        self._disk = disk
        self._entries: dict[int, Any] = {}
        self._bytes = 0
        self._newest = -1
        self._dropped_ahead: set[int] = set()  # entries dropped before their pages arrived

    def __len__(self) -> int:
        """Return the number of entries. Thread-safe."""
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Bytes of all entries. Thread-safe."""
        return self._bytes

    def free(self) -> None:
        """Delete all entries."""
        self._entries.clear()
        self._bytes = 0

    async def handle(self, message: Message) -> list[Message]:
        """Answer Gathered with Offloaded, Fetch with Fetched, Archive with Write, StagePages with TakePages."""
        match message:
            case Gathered(offload_id, entries, pages):
                return [Offloaded(offload_id, await self._keep(entries, pages))]
            case Fetch(request_id, copies):
                return [await self._fetch(request_id, copies)]
            case Archive(pages, entries, used):
                return [Write(pages, tuple(self._entries.get(entry) for entry in entries), used)]
            case Drop(entries):
                self._drop(entries)
                return []
            case StagePages(request, first, contents):
                staged = await self._stage(contents)
                return [*([TakePages(request, first, staged)] if staged else []), PagesStaged(request.id)]
        raise wrong_receiver("host tier", message)

    async def _keep(self, entries: Sequence[int], pages: Sequence[Any]) -> bool:
        """Keep all pages not dropped meanwhile; return False and keep none if they exceed the capacity."""
        pairs = zip(entries, pages, strict=bool(pages))
        by_entry = {entry: page for entry, page in pairs if entry not in self._dropped_ahead}
        self._newest = max((self._newest, *entries))
        self._dropped_ahead.difference_update(entries)
        new_bytes = sum(page.nbytes for page in by_entry.values())
        if not pages or self._bytes + new_bytes > self._capacity_bytes:
            return False
        try:
            keep, pages = self._copies.keep, list(by_entry.values())
            contents = await to_thread.run_sync(with_overrides, keep, pages, abandon_on_cancel=True)
        except jax.errors.JaxRuntimeError:  # no room in host memory: the pages will be computed again
            return False
        self._entries.update(zip(by_entry, contents, strict=True))
        self._bytes += new_bytes
        return True

    def _drop(self, entries: Sequence[int]) -> None:
        for entry in entries:
            if entry > self._newest:
                self._dropped_ahead.add(entry)
            elif entry in self._entries:
                self._bytes -= self._entries.pop(entry).nbytes

    async def _fetch(self, request_id: int, copies: Sequence[Copy]) -> Fetched:
        records = [copy.record for copy in copies if copy.record is not None]
        contents_of: dict[Copy, Any] = {
            copy: self._entries.get(copy.entry) for copy in copies if copy.entry is not None
        }
        if records and self._disk is not None:
            contents = await to_thread.run_sync(_read, self._disk, records, abandon_on_cancel=True)
            contents_of |= {Copy(None, record): content for record, content in zip(records, contents, strict=True)}
        bad = tuple(copy for copy in copies if contents_of.get(copy) is None)
        if bad:
            return Fetched(request_id, None, bad)
        return Fetched(request_id, await self._stage([contents_of[copy] for copy in copies]))

    async def _stage(self, contents: Sequence[Any]) -> tuple[Any, ...] | None:
        """Copy contents to the device; return None if it has no room."""
        try:
            stage = self._copies.stage
            return tuple(await to_thread.run_sync(with_overrides, stage, contents, abandon_on_cancel=True))
        except jax.errors.JaxRuntimeError:  # the pages can still be computed
            return None
