"""Responses kept for later requests, in memory or on disk."""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import time
from typing import Any, Final, TypeVar

from rekindle.core.concurrency.feed import TO_THE_END, Feed
from rekindle.server.common.events import large_json_bytes
from rekindle.server.common.fields import load
from rekindle.server.tracing.log import LOG, without_paths

T = TypeVar("T")

MEMORY_BYTES: Final = 64 << 20
"""The most bytes of responses in memory."""
DISK_BYTES: Final = 1 << 30
"""The most bytes of responses on disk."""
WRITING_SECONDS: Final = 3600.0
"""The age of an incomplete file that no process writes any more."""
_ID: Final = re.compile(r"resp-[0-9a-f]{32}")
_ITEM_ID: Final = re.compile(r"[a-z]{1,4}_([0-9a-f]{32})_\d{1,9}", re.ASCII)
"""The id of an item of a response: it has that of the response."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response with its input.

    Attributes:
        items: the input items of its request.
        previous: the id of the response before it; None for the first one of a conversation.
        response: the response, as sent.
    """

    items: Sequence[Mapping[str, Any]]
    previous: str | None
    response: Mapping[str, Any]

    @classmethod
    def parse(cls, data: bytes) -> "KeptResponse":
        """Return a response from its JSON.

        Raises:
            UnknownForm: the JSON has another form, as that of another version may.
            ValueError: the data is no JSON.
        """
        match load(data, most_parts=inf):
            case {"items": list(items), "previous": str() | None as previous, "response": dict(response)} if all(
                isinstance(each, dict) for each in items
            ) and _has_output(response):
                return cls(items, previous, response)
        raise UnknownForm

    @property
    def input_ids(self) -> list[str]:
        """The ids of the input items, in order: from the client, or else with the number of the response."""
        name = self.response["id"].rpartition("-")[2]
        own = (item.get("id") for item in self.items)
        return [each if isinstance(each, str) else f"in_{name}_{place}" for place, each in enumerate(own)]

    @property
    def by_id(self) -> dict[str, Mapping[str, Any]]:
        """The items of the input and the output by their ids."""
        output = {item["id"]: item for item in self.response["output"] if isinstance(item.get("id"), str)}
        return dict(zip(self.input_ids, self.items, strict=True)) | output

    @property
    def json(self) -> bytes:
        """The response as JSON."""
        return large_json_bytes({"items": list(self.items), "previous": self.previous, "response": dict(self.response)})


class UnknownForm(Exception):
    """The JSON of a response in an unknown form."""


def _has_output(response: Mapping[str, Any]) -> bool:
    """Return True if a response has an id, and an output of items whose contents are lists of parts."""
    output = response.get("output")
    if not isinstance(response.get("id"), str) or not isinstance(output, list):
        return False
    if not all(isinstance(each, dict) for each in output):
        return False
    contents = [each.get("content") or [] for each in output]
    return all(isinstance(content, list) and all(isinstance(part, dict) for part in content) for content in contents)


class KeptResponses:
    """The responses of a server by id. Beyond the limits, those without use for the longest time are dropped.

    Responses are read, written and deleted on one thread, in the order of the calls, so the event loop waits for no
    disk, and parses no response. On disk, the files decide: processes with the same directory agree.

    Args:
        directory: the directory of their files; None for memory.
        memory: the most bytes in memory.
        disk: the most bytes on disk.
    """

    def __init__(self, directory: Path | None = None, memory: int = MEMORY_BYTES, disk: int = DISK_BYTES):
        self._store = InMemory(memory) if directory is None else OnDisk(directory, disk, InMemory(memory))
        self._thread = ThreadPoolExecutor(1, "rekindle-responses")

    def put(self, entry: KeptResponse) -> None:
        """Keep a response, on the thread. One that the disk refuses is kept in memory, with a warning."""
        self._thread.submit(self._put, entry)

    async def settle(self) -> None:
        """Wait until the files of all responses so far are written."""
        await self._run(lambda: None)

    async def get(self, name: str) -> KeptResponse | None:
        """Return a response, or None if it is unknown or dropped."""
        return await self._run(lambda: _entry_of(self._store, name))

    async def conversation(self, name: str) -> list[Mapping[str, Any]] | None:
        """Return the items of a conversation up to a response and with it, or None if a part of it is missing."""
        return await self._run(lambda: _conversation(self._store, name))

    async def items(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the items with these ids, of the input and the output of kept responses; unknown ones are left out."""
        return await self._run(lambda: _items_of(self._store, names))

    async def delete(self, name: str) -> bool:
        """Drop a response, and return whether it was kept."""
        return await self._run(lambda: self._store.delete(name))

    def _put(self, entry: KeptResponse) -> None:
        try:
            self._store.put(entry.response["id"], entry.json)
        except Exception as error:  # nobody waits for it: the client still gets its answer
            LOG.warning("the response %s is not kept: %s", entry.response["id"], without_paths(error))

    async def _run(self, work: Callable[[], T]) -> T:
        """Run work after all earlier work. Its wait takes no thread: a slow disk would leave none to other requests."""
        done, future = Feed[None](), self._thread.submit(work)
        future.add_done_callback(lambda _: done.close())
        await done.wait(TO_THE_END)
        return future.result()


def _entry_of(store: "InMemory | OnDisk", name: str) -> KeptResponse | None:
    """Return a response, or None; a damaged one is deleted."""
    data = store.get(name)
    if data is None:
        return None
    try:
        return KeptResponse.parse(data)
    except UnknownForm:
        LOG.warning("the file of the response %s has the form of another version, and is not read", name)
        return None
    except (ValueError, RecursionError):
        LOG.warning("the file of the response %s is damaged", name)
        store.delete(name)
        return None


def _conversation(store: "InMemory | OnDisk", name: str) -> list[Mapping[str, Any]] | None:
    """Return the items of a conversation up to a response and with it, or None if a part of it is missing."""
    parts: list[Sequence[Mapping[str, Any]]] = []
    names: set[str] = set()
    following: str | None = name
    while following is not None:
        entry = None if following in names else _entry_of(store, following)
        if entry is None:
            return None
        names.add(following)
        parts.append([*entry.items, *entry.response["output"]])
        following = entry.previous
    return [item for part in reversed(parts) for item in part]


def _items_of(store: "InMemory | OnDisk", names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the items with these ids, of the input and the output of kept responses; unknown ones are left out."""
    items: dict[str, Mapping[str, Any]] = {}
    responses = dict.fromkeys(f"resp-{match[1]}" for name in names if (match := _ITEM_ID.fullmatch(name)))
    for response in responses:
        entry = _entry_of(store, response)
        if entry is not None:
            items |= entry.by_id
    return {name: items[name] for name in names if name in items}


class InMemory:
    """Data by name in memory, with a limit.

    Args:
        most: the most bytes.
    """

    def __init__(self, most: int):
        self._entries: dict[str, bytes] = {}
        self._sizes = _Sizes(most)

    def put(self, name: str, data: bytes) -> None:
        """Keep data."""
        self._entries[name] = data
        for dropped in self._sizes.add(name, len(data)):
            del self._entries[dropped]

    def get(self, name: str) -> bytes | None:
        """Return data, now the latest in use, or None."""
        data = self._entries.get(name)
        if data is not None:
            self.put(name, data)
        return data

    def delete(self, name: str) -> bool:
        """Drop data, and return whether there were any."""
        self._sizes.remove(name)
        return self._entries.pop(name, None) is not None


class OnDisk:
    """Data by name in files of a directory, perhaps of several processes, with a limit.

    Args:
        directory: the directory.
        most: the most bytes.
        others: the place of data refused by the disk.
    """

    def __init__(self, directory: Path, most: int, others: InMemory):
        self._directory, self._sizes, self._others = directory, _Sizes(most), others
        _drop_parts(directory)
        for name, size in _files(directory):
            self._unlink(self._sizes.add(name, size))

    def put(self, name: str, data: bytes) -> None:
        """Write data, or keep the data in memory if the disk refuses."""
        part = self._directory / f"{name}.part"
        try:
            part.write_bytes(data)
            part.replace(self._directory / f"{name}.json")
            self._unlink(self._sizes.add(name, len(data)))
        except OSError as error:  # such as a full disk: the client still gets its answer
            LOG.warning("a response is kept in memory alone: %s", without_paths(error))
            self._others.put(name, data)
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def get(self, name: str) -> bytes | None:
        """Return data, perhaps of another process and now the latest in use, or None."""
        if not _ID.fullmatch(name):
            return None
        file = self._directory / f"{name}.json"
        try:
            data = file.read_bytes()
        except OSError:  # another process may have dropped it
            self._sizes.remove(name)
            return self._others.get(name)
        with suppress(OSError):
            os.utime(file)
        self._unlink(self._sizes.add(name, len(data)))
        return data

    def delete(self, name: str) -> bool:
        """Drop data, and return whether there were any."""
        if not _ID.fullmatch(name):
            return False
        self._sizes.remove(name)
        return self._others.delete(name) or self._unlink([name]) > 0

    def _unlink(self, names: Sequence[str]) -> int:
        """Delete files, and return the number of deletions."""
        count = 0
        for name in names:
            with suppress(OSError):
                (self._directory / f"{name}.json").unlink()
                count += 1
        return count


def _drop_parts(directory: Path) -> None:
    """Delete incomplete files of processes that ended early."""
    for each in directory.glob("resp-*.part"):
        with suppress(OSError):
            if each.stat().st_mtime < time() - WRITING_SECONDS:  # another process may be at work on a later one
                each.unlink()


def _files(directory: Path) -> list[tuple[str, int]]:
    """Return the names and sizes of the responses in a directory, those without use for the longest time first."""
    files: list[tuple[int, str, int]] = []
    for each in directory.glob("resp-*.json"):
        if _ID.fullmatch(each.stem):
            with suppress(OSError):  # another process may drop it meanwhile
                status = each.stat()
                files.append((status.st_mtime_ns, each.stem, status.st_size))
    return [(name, size) for _, name, size in sorted(files)]


class _Sizes:
    """Sizes of entries in the order of their use, and their limit."""

    def __init__(self, most: int):
        self._most, self._total = most, 0
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def add(self, name: str, size: int) -> list[str]:
        """Add or renew an entry, and return the names of those over the limit, now removed."""
        self.remove(name)
        self._sizes[name] = size
        self._total += size
        dropped: list[str] = []
        while self._total > self._most:
            oldest, its_size = self._sizes.popitem(last=False)
            self._total -= its_size
            dropped.append(oldest)
        return dropped

    def remove(self, name: str) -> None:
        """Remove an entry, if it is there."""
        self._total -= self._sizes.pop(name, 0)
