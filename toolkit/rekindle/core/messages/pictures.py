"""Preparation of images for the tower of a model."""

from dataclasses import dataclass, field
from typing import Any

from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import describe_error
from rekindle.core.request.picture import Picture
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class CutPicture(OfRequest):
    """Cut an image into patches in a worker thread. From the scheduler to the vision actor.

    Attributes:
        picture: the image.
        is_first_tower: whether embeddings of earlier sessions are of the tower in use, that of `open`.
    """

    picture: Picture
    is_first_tower: bool = True

    def __str__(self) -> str:
        return f"CutPicture: request {self.request_id}, {quantity(self.picture.tokens, 'token')}"


@dataclass(frozen=True, slots=True)
class PictureCut(OfRequest):
    """The answer to a `CutPicture`. From the vision actor to the scheduler.

    Attributes:
        digest: the digest of the image.
        outcome: its `Patches`, a `StoredPicture`, or the error of a damaged file.
    """

    digest: bytes
    outcome: Any = field(repr=False)

    def __str__(self) -> str:
        error = f", {describe_error(self.outcome)}" if isinstance(self.outcome, Exception) else ""
        return f"PictureCut: request {self.request_id}{error}"


@dataclass(frozen=True, slots=True)
class StoredPicture:
    """Embeddings of an image from disk, in place of `Patches`.

    Attributes:
        values: (tokens, hidden) float32.
    """

    values: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ReadPicture(Message):
    """Read the embeddings of an image from the buffer, to be stored. From the scheduler to the stepper.

    Attributes:
        digest: the digest of the image.
        rows: the rows of the buffer for its tokens, (tokens,) int32.
        losses: the number of losses of the device state so far.
    """

    digest: bytes
    rows: Any = field(compare=False, repr=False)
    losses: int = 0

    def __str__(self) -> str:
        return f"ReadPicture: {quantity(len(self.rows), 'token')}"


@dataclass(frozen=True, slots=True)
class PictureRead(Message):
    """The answer to a `ReadPicture`. From the stepper to the vision actor.

    Attributes:
        digest: the digest of the image.
        pieces: device arrays of `PIECE` embeddings each, the last with padding.
        tokens: the number of tokens of the image.
    """

    digest: bytes
    pieces: tuple[Any, ...] = field(compare=False, repr=False)
    tokens: int

    def __str__(self) -> str:
        return f"PictureRead: {quantity(self.tokens, 'token')}"


@dataclass(frozen=True, slots=True)
class SegmentEmbedding:
    """A segment of an image for the tower to embed before the tick; a part of `Plan`.

    Attributes:
        request_id: the request that needs it.
        rows: the rows of the buffer of embeddings for its tokens, (tokens,) int32.
        patches: its `Patches`, of one segment, or the whole `StoredPicture`.
    """

    request_id: int
    rows: Any = field(compare=False, repr=False)
    patches: Any = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"embed {quantity(len(self.rows), 'token')} of an image of {self.request_id}"
