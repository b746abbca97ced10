"""Segments of a snapshot on disk: immutable entries of a few pages, with a header that lists the pages."""

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
        content: SHA-256 of the page array's bytes.
        shape, dtype: shape and dtype of the page's array.
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
    """The model and the snapshot key of some pages.

    Attributes:
        model: display name of the model.
        parts: the parts of the snapshot's key, by name.
    """

    model: str
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, as described by its header.

    Attributes:
        created: creation time, in seconds since the epoch.
        pages: the segment's pages, in the order of their arrays.
    """

    path: Path
    origin: SegmentOrigin
    created: float
    pages: tuple[SegmentPage, ...]

    @property
    def bytes(self) -> int:
        """Size of the segment on disk, in bytes; 0 if it is gone."""
        return disk.bytes_of(self.path)


def write_segment(directory: Path, origin: SegmentOrigin, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Segment:
    """Store pages and their arrays as one new segment in a snapshot's directory.

    Do not call this on an event loop's thread, because Orbax would patch the loop.

    Raises:
        OSError: the disk is full, or the segment cannot be written. Orbax may raise other errors.
    """
    segment_pages = tuple(
        SegmentPage(**asdict(page), content=_content(array), shape=array.shape, dtype=str(array.dtype))
        for page, array in zip(pages, arrays, strict=True)
    )
    header = asdict(origin) | {
        "created": time.time(),
        "pages": [asdict(page) | {"key": page.key.hex()} for page in segment_pages],
    }
    by_name = {str(place): array for place, array in enumerate(arrays)}
    path = directory / os.urandom(16).hex()
    with disk.new_entry(directory, header, by_name, singly=True) as temporary:
        disk.publish(temporary, path)
    return Segment(path, origin, header["created"], segment_pages)


def open_segment(path: Path) -> Segment:
    """Read and check the header of a segment. The pages may still be damaged.

    Raises:
        OSError: the segment is missing, or contains something other than regular files and directories.
        UnsafeStorage: the segment belongs to another user, or is writable by others.
        Damaged: the header is not as it was written.
    """
    header = disk.header_of(path)
    try:
        origin = SegmentOrigin(str(header["model"]), {str(name): str(part) for name, part in header["parts"].items()})
        return Segment(path, origin, float(header["created"]), tuple(map(_page, header["pages"])))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the digest matches, but the format is unknown
        raise disk.Damaged("its header has an unknown form") from error


def read_pages(segment: Segment, places: Sequence[int]) -> list[Array]:
    """Read pages of a segment by their indexes in `segment.pages`.

    Raises:
        OSError, UnsafeStorage: see `open_segment`.
        Damaged: a page differs from its description in the header. tensorstore may raise other errors.
    """
    disk.verify(segment.path)
    arrays = disk.arrays_of(segment.path, [str(place) for place in places])
    ordered = [arrays[str(place)] for place in places]
    for place, array in zip(places, ordered, strict=True):
        page = segment.pages[place]
        if (array.shape, str(array.dtype), _content(array)) != (page.shape, page.dtype, page.content):
            raise disk.Damaged(f"page {place} is not as it was written")
    return ordered


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
    """Return the SHA-256 of an array's bytes. hashlib does not accept bfloat16 arrays, so they are viewed as bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
