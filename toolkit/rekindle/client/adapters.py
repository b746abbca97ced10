"""The adapters of a session, and the requests with them."""

import threading
from dataclasses import dataclass
from heapq import heappop, heappush

from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import likely
from rekindle.core.request.request import AdapterUse
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """One adapter, from `session.adapters`.

    Attributes:
        source: the path of its files; "the given adapter" for one given as arrays.
        rank: its largest rank.
        digest: the SHA-256 of its numbers.
        requests: the number of unfinished requests with it.
    """

    source: str
    rank: int
    digest: str
    requests: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    """An adapter on the device: named, or removed and still in use."""

    use: AdapterUse
    info: AdapterInfo
    requests: int = 0
    is_named: bool = True


class AdapterTable:
    """The adapters of a session by name, and the slots on the device. Thread-safe.

    A slot belongs to an adapter until its name is removed or given to another one, and its last request has ended.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, _Entry] = {}
        self._occupied: dict[int, _Entry | None] = {}  # None while an adapter is put there
        self._free: list[int] = []  # a heap of slots below the next one that was never used
        self._unused = 0
        self._adding: list[str] = []
        self._freed: Feed[None] = Feed()
        self._lock = threading.Lock()

    @property
    def infos(self) -> dict[str, AdapterInfo]:
        """The named adapters, in the order of their addition."""
        with self._lock:
            return {
                name: AdapterInfo(entry.info.source, entry.info.rank, entry.info.digest, entry.requests)
                for name, entry in self._by_name.items()
            }

    def check(self, name: str | None) -> None:
        """Raise InvalidRequest unless requests may name this adapter; None is no adapter."""
        if name is not None:
            with self._lock:
                self._entry(name)

    def take(self, name: str | None) -> AdapterUse | None:
        """Return the adapter for one more request; raises as `check` does. `give_back` ends the use."""
        if name is None:
            return None
        with self._lock:
            entry = self._entry(name)
            entry.requests += 1
            return entry.use

    def give_back(self, use: AdapterUse) -> None:
        """Record the end of a request with an adapter."""
        with self._lock:
            entry = self._occupied[use.slot]
            assert entry is not None, "a slot that is being filled has no requests"
            entry.requests -= 1
            freed = self._free_unused(entry)
        if freed is not None:
            freed.close()

    def reserve(self, name: str, most: int) -> tuple[int | None, Feed[None]]:
        """Take a free slot for an adapter with this name; `put` or `cancel` must follow.

        Args:
            most: the most adapters with a name. There is one slot more.

        Returns:
            The slot, or None while removed adapters in use leave none; and a feed that closes when one is freed.

        Raises:
            InvalidRequest: there are as many adapters already.
        """
        with self._lock:
            new = {each for each in (*self._adding, name) if each not in self._by_name}
            if name in new and name not in self._adding and len(self._by_name) + len(new) > most:
                raise InvalidRequest(
                    f"the session has {quantity(most, 'adapter')}, as many as it has room for: "
                    f"{', '.join(map(repr, self._by_name))}. Remove one, or open the session with a larger max_adapters"
                )
            slot = self._take_slot(most)
            if slot is not None:
                self._occupied[slot] = None
                self._adding.append(name)
            return slot, self._freed

    def put(self, name: str, slot: int, info: AdapterInfo) -> None:
        """Give a name to the adapter now in a reserved slot. Another adapter of this name is removed."""
        entry = _Entry(AdapterUse(name, slot, info.digest), info)
        with self._lock:
            self._adding.remove(name)
            self._occupied[slot] = entry
            before, self._by_name[name] = self._by_name.get(name), entry
            freed = None if before is None else self._forget(before)
        if freed is not None:
            freed.close()

    def cancel(self, name: str, slot: int) -> None:
        """Free a reserved slot."""
        with self._lock:
            self._adding.remove(name)
            freed = self._free_slot(slot)
        freed.close()

    def remove(self, name: str) -> None:
        """Take the name from an adapter; raises as `check` does."""
        with self._lock:
            entry = self._entry(name)
            del self._by_name[name]
            freed = self._forget(entry)
        if freed is not None:
            freed.close()

    def _entry(self, name: str) -> _Entry:
        if name not in self._by_name:
            names = ", ".join(map(repr, self._by_name)) or "none"
            hint = likely(name, self._by_name) or f"the session has {names}"
            raise InvalidRequest.of(
                "adapter", f"there is no adapter {name!r:.80}; {hint}; session.add_adapter adds one"
            )
        return self._by_name[name]

    def _forget(self, entry: _Entry) -> Feed[None] | None:
        entry.is_named = False
        return self._free_unused(entry)

    def _free_unused(self, entry: _Entry) -> Feed[None] | None:
        """Free the slot of an adapter without a name and requests; return the feed to close then."""
        if entry.is_named or entry.requests:
            return None
        return self._free_slot(entry.use.slot)

    def _take_slot(self, most: int) -> int | None:
        """Return the first free slot of `most` and one more; None if there is none."""
        if self._free:
            return heappop(self._free)
        if self._unused > most:
            return None
        self._unused += 1
        return self._unused - 1

    def _free_slot(self, slot: int) -> Feed[None]:
        """Free a slot; return the feed to close then."""
        del self._occupied[slot]
        heappush(self._free, slot)
        freed, self._freed = self._freed, Feed()
        return freed
