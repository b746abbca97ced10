"""Validity of stored entries: keys over code and settings, and differences between two keys."""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

SOURCES: Final = (
    "rekindle/core/buckets.py",
    "rekindle/core/content.py",
    "rekindle/core/device/inputs.py",
    "rekindle/core/device/jax_settings.py",
    "rekindle/core/device/page_form.py",
    "rekindle/core/device/place.py",
    "rekindle/core/device/programs/functions.py",
    "rekindle/core/device/programs/lowering.py",
    "rekindle/core/device/programs/shapes.py",
    "rekindle/core/device/programs/vision_shapes.py",
    "rekindle/core/device/proposing.py",
    "rekindle/core/device/sampling",
    "rekindle/core/device/state.py",
    "rekindle/core/device/step.py",
    "rekindle/core/device/sums.py",
    "rekindle/core/device/tick_mixer.py",
    "rekindle/core/models/abstract.py",
    "rekindle/core/models/adapters",
    "rekindle/core/models/attention.py",
    "rekindle/core/models/config",
    "rekindle/core/models/decoder.py",
    "rekindle/core/models/draft_head.py",
    "rekindle/core/models/feed_forward",
    "rekindle/core/models/inspection",
    "rekindle/core/models/latent.py",
    "rekindle/core/models/layer.py",
    "rekindle/core/models/layers.py",
    "rekindle/core/models/mixing.py",
    "rekindle/core/models/rope.py",
    "rekindle/core/models/sequence.py",
    "rekindle/core/models/shard.py",
    "rekindle/core/models/states",
    "rekindle/core/models/streams",
    "rekindle/core/models/taps",
    "rekindle/core/models/vision",
    "rekindle/core/models/weights",
    "rekindle/core/page.py",
    "rekindle/core/layer_parts.py",
    "rekindle_kernels",
)
"""Files and packages imported by `lowering`: any code in a compiled program comes from one of them."""

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


def code_digest() -> str:
    """Return a digest of Rekindle's sources in this process.

    After an edit of the sources since the import, the running code is unknown. Each call then returns a new digest, so
    no stored entry is used, and no entry stored from now on is ever used again.
    """
    now = _digest_of_sources()
    return now if now == _IMPORTED else f"{now} was edited after the import ({os.urandom(8).hex()})"


def _digest_of_sources() -> str:
    whole = hashlib.sha256()
    for name, content in _sources():
        whole.update(f"{name} {sha256_hex(content)}\n".encode())
    return whole.hexdigest()


def _sources() -> Iterator[tuple[str, bytes]]:
    for name in SOURCES:
        package, _, inner = name.partition("/")
        place = resources.files(package)
        yield from _files(name, place.joinpath(inner) if inner else place)


def _files(name: str, place: Traversable) -> Iterator[tuple[str, bytes]]:
    if place.is_dir():
        for child in sorted(place.iterdir(), key=lambda child: child.name):
            if child.is_dir() or child.name.endswith((".py", ".json")):  # kernel tuning tables are JSON
                yield from _files(f"{name}/{child.name}", child)
    else:
        yield name, place.read_bytes()


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


_IMPORTED: Final = _digest_of_sources()
