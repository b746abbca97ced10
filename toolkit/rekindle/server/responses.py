"""Responses kept for later requests, in memory and on disk."""

import json
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rekindle.server.tracing.log import LOG

MEMORY_BYTES: Final = 64 << 20
"""The most bytes of responses in memory."""
DISK_BYTES: Final = 1 << 30
"""The most bytes of responses on disk."""
_ID: Final = re.compile(r"resp-[0-9a-f]{32}")


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
        """Return a response from its JSON."""
        return cls(**json.loads(data))

    @property
    def json(self) -> bytes:
        """The response as JSON."""
        value = {"items": list(self.items), "previous": self.previous, "response": dict(self.response)}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


class KeptResponses:
    """The responses of a server by id. Beyond the limits, those without use for the longest time are dropped.

    Args:
        directory: a directory for copies on disk; None for memory alone.
        memory: the most bytes in memory.
        disk: the most bytes on disk.
    """

    def __init__(self, directory: Path | None = None, memory: int = MEMORY_BYTES, disk: int = DISK_BYTES):
        self._memory = _Sizes(memory)
        self._entries: dict[str, bytes] = {}
        self._directory, self._disk = directory, _Sizes(disk)
        if directory is not None:
            for name, size in _files(directory):
                self._drop_files(self._disk.add(name, size))

    def put(self, entry: KeptResponse) -> None:
        """Keep a response. One that cannot be written to disk is kept in memory alone, with a warning in the log."""
        name, data = entry.response["id"], entry.json
        self._hold(name, data)
        if self._directory is not None:
            part = self._directory / f"{name}.part"
            try:
                part.write_bytes(data)
                part.replace(self._directory / f"{name}.json")
                self._drop_files(self._disk.add(name, len(data)))
            except OSError as error:  # such as a full disk: the client still gets its answer
                LOG.warning("a response is kept in memory alone: %s", error)
                with suppress(OSError):
                    part.unlink(missing_ok=True)

    def get(self, name: str) -> KeptResponse | None:
        """Return a response, or None if it is unknown or dropped."""
        data = self._entries.get(name)
        if data is None:
            data = self._read(name)
        if data is None:
            return None
        try:
            entry = KeptResponse.parse(data)
        except (ValueError, TypeError):
            LOG.warning("the file of the response %s is damaged", name)
            self.delete(name)
            return None
        self._hold(name, data)
        return entry

    def conversation(self, name: str) -> list[Mapping[str, Any]] | None:
        """Return the items of a conversation up to a response and with it, or None if a part of it is missing."""
        parts: list[Sequence[Mapping[str, Any]]] = []
        following: str | None = name
        while following is not None:
            entry = self.get(following)
            if entry is None:
                return None
            parts.append([*entry.items, *entry.response["output"]])
            following = entry.previous
        return [item for part in reversed(parts) for item in part]

    def delete(self, name: str) -> bool:
        """Drop a response, and return whether it was kept."""
        is_here = name in self._entries or self._read(name) is not None
        self._entries.pop(name, None)
        self._memory.remove(name)
        self._disk.remove(name)
        self._drop_files([name])
        return is_here

    def _read(self, name: str) -> bytes | None:
        """Return the file of a response, perhaps of another process; None if there is none."""
        if self._directory is None or not _ID.fullmatch(name):
            return None
        file = self._directory / f"{name}.json"
        try:
            data = file.read_bytes()
        except OSError:  # another process may have dropped it
            self._disk.remove(name)
            return None
        with suppress(OSError):
            os.utime(file)
        self._drop_files(self._disk.add(name, len(data)))
        return data

    def _hold(self, name: str, data: bytes) -> None:
        self._entries[name] = data
        for dropped in self._memory.add(name, len(data)):
            del self._entries[dropped]

    def _drop_files(self, names: Sequence[str]) -> None:
        for name in names:
            if self._directory is not None and _ID.fullmatch(name):
                with suppress(OSError):
                    (self._directory / f"{name}.json").unlink()


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

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

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
