"""Validity of stored entries: their keys, and differences between two keys."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

Difference = tuple[str, str]
"""One part's values (in this process, in the stored key); a missing part is empty."""

_MAX_UNTRIMMED: Final = 80
_MAX_CHARACTERS: Final = 160


class StoreKey(ABC):
    """Key of a stored entry. The entry is valid only while every part is unchanged."""

    __slots__ = ()

    @abstractmethod
    def parts(self) -> dict[str, str]:
        """Return every part by name."""

    @property
    def digest(self) -> str:
        """SHA-256 over all parts, as 64 hexadecimal digits."""
        return sha256_hex(json.dumps(self.parts(), sort_keys=True).encode())

    def explain(self, stored: Mapping[str, str]) -> dict[str, Difference]:
        """Return the differing parts by name, each with its value in this key and in the stored parts."""
        here = self.parts()
        pairs = {name: (here.get(name, ""), stored.get(name, "")) for name in (*here, *stored)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 of some bytes as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def shorten(difference: Difference) -> Difference:
    """Shorten both values for display: drop the common words of long values, and all but 12 digits of digests."""
    here, there = difference
    if max(map(len, difference)) > _MAX_UNTRIMMED:
        separator = next((mark for mark in ("; ", ", ") if mark in here or mark in there), " ")
        words_here, words_there = here.strip("{}").split(separator), there.strip("{}").split(separator)
        only = (
            [word for word in words_here if word not in words_there],
            [word for word in words_there if word not in words_here],
        )
        if any(only):
            here, there = (separator.join(words) for words in only)
    return _abridge(here), _abridge(there)


def _abridge(text: str) -> str:
    text = re.sub("[0-9a-f]{64}", lambda digest: f"{digest[0][:12]}...", text)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
