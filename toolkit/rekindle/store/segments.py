"""Segments of a snapshot on disk: a few pages each, and a header that says which; never changed once they are named."""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.page import NewPage
from rekindle.store import entries as disk

PAGES_PER_SEGMENT: Final = 16
_NAME: Final = re.compile("[0-9a-f]{32}")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """A page of a segment.

    Attributes:
        digest, parent, namespace, key: see `StoredPage`.
        content: the SHA-256 of its bytes.
        shape, dtype: of its array.
    """

    digest: str
    parent: str
    namespace: str
    key: bytes
    content: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where pages come from.

    Attributes:
        model: the name that a person knows it by.
        parts: of the snapshot's key, by name.
    """

    model: str
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as its header tells.

    Attributes:
        path: its directory.
        origin: of its pages.
        created: seconds since the epoch.
        pages: in the order of their arrays.
    """

    path: Path
    origin: Origin
    created: float
    pages: tuple[SegmentPage, ...]

    @property
    def bytes(self) -> int:
        """On disk."""
        return segment_bytes(self.path)


def write_segment(directory: Path, origin: Origin, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Segment:
    """Store pages as one segment. Not for an event loop's thread: Orbax would patch the loop.

    Args:
        directory: of the snapshot.
        origin: of the pages.
        pages: see `NewPage`.
        arrays: the content of each.

    Raises:
        OSError: there is no room for it, or it cannot be written; also whatever Orbax raises then.
    """
    told = tuple(_told(page, array) for page, array in zip(pages, arrays, strict=True))
    header = asdict(origin) | {
        "created": time.time(),
        "pages": [asdict(page) | {"key": page.key.hex()} for page in told],
    }
    named = {str(place): array for place, array in enumerate(arrays)}
    temporary = disk.write_temporary(directory, header, named, singly=True)
    path = directory / os.urandom(16).hex()
    try:
        disk.publish(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Segment(path, origin, header["created"], told)


def open_segment(path: Path) -> Segment:
    """A segment whose header is as it was written; the rest may not be.

    Raises:
        FileNotFoundError: it is gone.
        UnsafeStorage: it belongs to another user, or is writable by others.
        Damaged: its header is something else than what was written.
    """
    header = disk.header_of(path)
    try:
        origin = Origin(str(header["model"]), {str(name): str(part) for name, part in header["parts"].items()})
        return Segment(path, origin, float(header["created"]), tuple(map(_page, header["pages"])))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # an honest seal, but not one of ours
        raise disk.Damaged("its header is of an unknown form") from error


def read_pages(segment: Segment, places: Sequence[int]) -> list[Array]:
    """The content of some of its pages, in one go. Not for an event loop's thread: Orbax would patch the loop.

    Raises:
        As `open_segment`, and also Damaged where a page is not what the segment's header says, and whatever Orbax
        raises when it reads something else than it wrote.
    """
    disk.verified(segment.path)
    arrays = disk.arrays_of(segment.path, [str(place) for place in places])
    found = [arrays[str(place)] for place in places]
    for place, array in zip(places, found, strict=True):
        page = segment.pages[place]
        if (array.shape, str(array.dtype), _content(array)) != (page.shape, page.dtype, page.content):
            raise disk.Damaged(f"page {place} is not as it was written")
    return found


def segment_paths(directory: Path) -> list[Path]:
    """Of all segments of a snapshot; what else lies in its directory is left alone."""
    try:
        return [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:  # it is not there, or is no directory, or cannot be read
        return []


@lru_cache(maxsize=1 << 16)
def segment_bytes(path: Path) -> int:
    """What a segment takes on disk. It never changes, and its name is never given again."""
    return disk.size_of(path)


def _told(page: NewPage, array: Array) -> SegmentPage:
    return SegmentPage(
        page.digest, page.parent, page.namespace, page.key, _content(array), array.shape, str(array.dtype)
    )


def _page(fields: dict[str, Any]) -> SegmentPage:
    return SegmentPage(
        digest=str(fields["digest"]),
        parent=str(fields["parent"]),
        namespace=str(fields["namespace"]),
        key=bytes.fromhex(fields["key"]),
        content=str(fields["content"]),
        shape=tuple(map(int, fields["shape"])),
        dtype=str(fields["dtype"]),
    )


def _content(array: Array) -> str:
    """Of the bytes alone: hashlib takes no bfloat16."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
