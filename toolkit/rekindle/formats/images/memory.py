"""Digests of images by the bytes of their files: a repeated file is decoded once."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np

from rekindle.formats.images.room import ROOM, Ended, never
from rekindle.formats.images.sources import ImageFile, ImageSource

MOST_FILES = 4096
"""Most identities; each takes about 300 bytes."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """The difference of an image from all others.

    Attributes:
        digest: 16 bytes of SHA-256 of the processor's settings, the size and the pixels.
        size: (height, width), as seen.
    """

    digest: bytes
    size: tuple[int, int]


class ImageMemory:
    """Identities of images by the SHA-256 of their files, the least recently used forgotten first. Thread-safe.

    Args:
        most: the most identities.

    Attributes:
        decoded: number of files decoded so far for their identities.
    """

    def __init__(self, most: int = MOST_FILES):
        self._most, self._lock = most, Lock()
        self._identities: OrderedDict[bytes, ImageIdentity] = OrderedDict()
        self.decoded = 0

    def identity(self, image: ImageSource, processor: object, ended: Ended = never) -> ImageIdentity:
        """Return the identity of an image, and decode an unknown file.

        Args:
            image: the image.
            processor: the rules for it, with all settings in their `repr`.
            ended: asked while the image waits for room, and between the steps of its decoder.

        Raises:
            InvalidRequest: the file is damaged.
            RequestCancelled: nobody waits for the image any more.
        """
        if not isinstance(image, ImageFile):
            return identity_of(image.pixels(), processor)
        key = hashlib.sha256(_settings(processor) + image.data).digest()
        if (identity := self._find(key)) is not None:
            return identity
        with ROOM.take(image.memory, ended):
            if (identity := self._find(key)) is not None:  # decoded for another request meanwhile
                return identity
            identity = identity_of(image.pixels(ended), processor)
        with self._lock:
            self.decoded += 1
            self._identities[key] = identity
            while len(self._identities) > self._most:
                self._identities.popitem(last=False)
        return identity

    def _find(self, key: bytes) -> ImageIdentity | None:
        with self._lock:
            if key in self._identities:
                self._identities.move_to_end(key)
            return self._identities.get(key)


def identity_of(pixels: np.ndarray, processor: object) -> ImageIdentity:
    """Return the identity of pixels, (height, width, 3) uint8."""
    height, width, _ = pixels.shape
    content = hashlib.sha256(_settings(processor) + f"{height} x {width}\0".encode())
    content.update(np.ascontiguousarray(pixels).data)
    return ImageIdentity(content.digest()[:DIGEST_BYTES], (height, width))


def _settings(processor: object) -> bytes:
    """Return all settings of a processor, with a NUL after them."""
    return f"{processor!r}\0".encode()
