"""The gallery: which images of requests are in the buffer of embeddings on the device. Pure host logic."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rekindle.core.messages import CutPicture, Message, PictureCut, ReadPicture, SegmentEmbedding, StoredPicture
from rekindle.core.request.picture import Picture
from rekindle.core.scheduler.stats import Counts

AHEAD = 2
"""Images of a request that are cut at once: the next one, and one more while the tower embeds it."""


@dataclass(slots=True, eq=False)
class Waiting:
    """An image that the tower has not embedded as a whole.

    Attributes:
        requests: the ids of the waiting requests.
        patches: its `Patches`, or a `StoredPicture`; None before the answer of the vision actor.
        rows: the rows of the buffer for the image; None before the first segment.
        segments: the number of embedded segments.
    """

    requests: set[int] = field(default_factory=set)
    patches: Any = None
    rows: Any = None
    segments: int = 0


class Gallery:
    """The images on the device, and the images on their way there.

    The buffer has a row for each token of an image. The least recently used image makes room for another one. Rows in
    use by ticks in flight may go to another image, because a device computes in order.

    Args:
        rows: the number of rows of the buffer.
        counts: the counters of the scheduler.
        keeps: whether embeddings are stored on disk.

    Attributes:
        is_first_tower: whether the tower is still that of `open`, to which stored embeddings belong.
    """

    def __init__(self, rows: int, counts: Counts, *, keeps: bool = False):
        self._counts, self._padding, self._keeps = counts, rows, keeps
        self.is_first_tower = True
        self._free = list(range(rows - 1, -1, -1))
        self._rows: dict[bytes, Any] = {}  # of embedded images, the least recently used one first
        self._waiting: dict[bytes, Waiting] = {}
        self._messages: list[Message] = []

    def has(self, picture: Picture) -> bool:
        """Return True for an image embedded as a whole, and count a use of the image."""
        rows = self._rows.pop(picture.digest, None)
        if rows is not None:
            self._rows[picture.digest] = rows
        return rows is not None

    def await_all(self, request_id: int, pictures: Sequence[Picture]) -> None:
        """Add a request to the waits for its next images, at most `AHEAD`, and request the missing patches."""
        for picture in pictures[:AHEAD]:
            if picture.digest in self._rows:
                continue
            if picture.digest not in self._waiting:
                self._waiting[picture.digest] = Waiting()
                self._messages.append(CutPicture(request_id, picture, self.is_first_tower))
            self._waiting[picture.digest].requests.add(request_id)

    def take(self, message: PictureCut) -> Collection[int]:
        """Store the patches of an image; return the requests to fail with the error in place of patches."""
        waiting = self._waiting.get(message.digest)
        if waiting is None:
            return ()
        if isinstance(message.outcome, Exception):
            self._drop(message.digest)
            return tuple(waiting.requests)
        waiting.patches = message.outcome
        return ()

    def next_embedding(
        self, request_id: int, picture: Picture, keep: Collection[bytes], losses: int
    ) -> SegmentEmbedding | None:
        """Return the next segment of an image to embed, or None without patches or without room.

        Args:
            keep: the digests of images in the same plan.
            losses: the number of losses of the device state so far.
        """
        waiting = self._waiting.get(picture.digest)
        if waiting is None or waiting.patches is None:
            return None
        if waiting.rows is None:
            waiting.rows = self._place(picture.tokens, keep)
        if waiting.rows is None:
            return None
        if isinstance(waiting.patches, StoredPicture):
            self._rows[picture.digest] = waiting.rows
            del self._waiting[picture.digest]
            return SegmentEmbedding(request_id, waiting.rows, waiting.patches)
        patches, segment = waiting.patches, waiting.segments
        waiting.segments += 1
        if waiting.segments == len(patches.values):
            self._rows[picture.digest] = waiting.rows
            del self._waiting[picture.digest]
            self._counts.embedded_pictures += 1
            if self._keeps and self.is_first_tower:
                self._messages.append(ReadPicture(picture.digest, waiting.rows, losses))
        return segment_of(patches, segment, waiting.rows, self._padding, request_id)

    def rows_of(self, pictures: Sequence[Picture], start: int, end: int) -> Any:
        """Return `Chunk.embedded` of the tokens from `start` to `end`."""
        embedded = np.full(end - start, -1, np.int32)
        for picture in pictures:
            first, last = np.searchsorted(picture.positions, (start, end))
            if last > first and (rows := self._rows.get(picture.digest)) is not None:  # a cached image needs none
                embedded[picture.positions[first:last] - start] = rows[first:last]
        return embedded if embedded.max(initial=-1) >= 0 else None

    def leave(self, request_id: int) -> None:
        """End the waits of a request, and drop the images without any wait."""
        for digest, waiting in list(self._waiting.items()):
            waiting.requests.discard(request_id)
            if not waiting.requests:
                self._drop(digest)

    def lose_device(self) -> None:
        """Forget all embeddings: some plans with embeddings may be lost."""
        for rows in self._rows.values():
            self._free += rows.tolist()
        self._rows.clear()
        for waiting in self._waiting.values():
            if waiting.rows is not None:
                self._free += waiting.rows.tolist()
            waiting.rows, waiting.segments = None, 0

    def drain(self) -> list[Message]:
        """Remove and return the messages to the vision actor."""
        messages, self._messages = self._messages, []
        return messages

    def check(self) -> None:
        """Assert the invariant of exactly one owner of each row."""
        parts = [*self._rows.values(), *(each.rows for each in self._waiting.values() if each.rows is not None)]
        rows = [row for part in parts for row in part.tolist()] + self._free
        assert len(rows) == len(set(rows)), "a row of the buffer has two owners"

    def _place(self, tokens: int, keep: Collection[bytes]) -> Any:
        """Return free rows of the buffer, those of least recently used images among them; None without room."""
        for digest in [digest for digest in self._rows if digest not in keep]:
            if len(self._free) >= tokens:
                break
            self._free += self._rows.pop(digest).tolist()
        if len(self._free) < tokens:
            return None
        rows = np.array(self._free[-tokens:], np.int32)
        del self._free[-tokens:]
        return rows

    def _drop(self, digest: bytes) -> None:
        waiting = self._waiting.pop(digest)
        if waiting.rows is not None:
            self._free += waiting.rows.tolist()


def segment_of(patches: Any, segment: int, rows: Any, padding: int, request_id: int = 0) -> SegmentEmbedding:
    """Return a segment of an image to embed.

    Args:
        patches: the `Patches` of the whole image.
        segment: the index of the segment.
        rows: the rows of the buffer for the tokens of the image, (tokens,) int32.
        padding: the row for embeddings of padding.
        request_id: see `SegmentEmbedding`.
    """
    part = slice(segment, segment + 1)
    if patches.order is not None:
        (order,) = patches.order[part]
        own = np.where(order < 0, padding, rows[order]).astype(np.int32)
    else:
        valid = patches.valid.sum(1) * len(rows) // patches.valid.sum()  # tokens of each segment
        start, length = valid[:segment].sum(), patches.valid.shape[1] * len(rows) // patches.valid.sum()
        own = np.full(length, padding, np.int32)
        own[: valid[segment]] = rows[start : start + valid[segment]]
    one = type(patches)(patches.values[part], patches.positions[part], patches.valid[part])
    return SegmentEmbedding(request_id, own, one)
