"""Segments of a snapshot on disk: each holds a few pages, and a header that says which; it never changes."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.page import NewPage
from rekindle.core.store import entries as disk
from rekindle.core.store.entries import Array

PAGES_PER_SEGMENT: Final = 16


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """A page of a segment.

    Attributes:
        digest, parent, namespace, key: see `StoredPage`.
        content: the SHA-256 of the bytes of the page's array.
        shape, dtype: of the page's array.
    """

    digest: str
    parent: str
    namespace: str
    key: bytes
    content: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class SegmentOrigin:
    """The model and the key that pages were computed with.

    Attributes:
        model: the name that a person knows the model by.
        parts: the parts of the snapshot's key, by name.
    """

    model: str
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as its header describes it.

    Attributes:
        created: seconds since the epoch.
        pages: the segment's pages, in the order of their arrays.
    """

    path: Path
    origin: SegmentOrigin
    created: float
    pages: tuple[SegmentPage, ...]

    @property
    def bytes(self) -> int:
        """The bytes that the segment takes on disk; 0 if it is gone."""
        return disk.bytes_of(self.path)


def write_segment(directory: Path, origin: SegmentOrigin, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Segment:
    """Store pages and their content as one segment in a snapshot's directory.

    Do not call this on an event loop's thread, because Orbax would patch the loop.

    Raises:
        OSError: there is no room for it, or it cannot be written. Orbax may raise other errors then.
    """
    told = tuple(
        SegmentPage(**asdict(page), content=_content(array), shape=array.shape, dtype=str(array.dtype))
        for page, array in zip(pages, arrays, strict=True)
    )
    header = asdict(origin) | {
        "created": time.time(),
        "pages": [asdict(page) | {"key": page.key.hex()} for page in told],
    }
    named = {str(place): array for place, array in enumerate(arrays)}
    path = directory / os.urandom(16).hex()
    with disk.written(directory, header, named, singly=True) as temporary:
        disk.publish(temporary, path)
    return Segment(path, origin, header["created"], told)


def open_segment(path: Path) -> Segment:
    """Return a segment whose header is as it was written. The rest of the segment may be damaged.

    Raises:
        OSError: it is gone, or holds something else than files and directories.
        UnsafeStorage: it belongs to another user, or is writable by others.
        Damaged: its header is not as it was written.
    """
    header = disk.header_of(path)
    try:
        origin = SegmentOrigin(str(header["model"]), {str(name): str(part) for name, part in header["parts"].items()})
        return Segment(path, origin, float(header["created"]), tuple(map(_page, header["pages"])))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # sealed, but not by this module
        raise disk.Damaged("its header is of an unknown form") from error


def read_pages(segment: Segment, places: Sequence[int]) -> list[Array]:
    """Read the pages at some places in `segment.pages`.

    Raises:
        OSError, UnsafeStorage: as `open_segment`.
        Damaged: a page is not as the segment's header says. tensorstore may raise other errors then.
    """
    disk.verified(segment.path)
    arrays = disk.arrays_of(segment.path, [str(place) for place in places])
    found = [arrays[str(place)] for place in places]
    for place, array in zip(places, found, strict=True):
        page = segment.pages[place]
        if (array.shape, str(array.dtype), _content(array)) != (page.shape, page.dtype, page.content):
            raise disk.Damaged(f"page {place} is not as it was written")
    return found


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
    """Return a digest of an array's bytes, since hashlib takes no bfloat16."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
