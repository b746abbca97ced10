"""Cache with a limit on the size of its sources."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LEAST: Final = 1 << 13
"""Least size of a compiled grammar, in characters: a short source may stand for many texts."""


class Recent(Generic[K, V]):
    """Thread-safe cache of the values in latest use.

    Args:
        most: the most characters of the sources of all values together; the latest value stays in any case.
    """

    def __init__(self, most: int):
        self._most, self._total = most, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return a value, now the latest in use, or None."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value with a source of `size` characters, and drop the values least recently used."""
        with self._lock:
            if replaced := self._values.pop(key, None):
                self._total -= replaced[1]
            self._values[key] = value, size
            self._total += size
            while self._total > self._most and len(self._values) > 1:
                _, (_, dropped) = self._values.popitem(last=False)
                self._total -= dropped
