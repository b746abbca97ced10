"""The vision actor: prepares images for the tower in a worker thread, and keeps embeddings on disk."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from anyio import to_thread

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import StorageError
from rekindle.core.messages import CutPicture, Message, PictureCut, PictureRead, StoredPicture
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.models.vision.patches import Patches
from rekindle.core.request.picture import Picture
from rekindle.core.store.picture_store import PictureStore


class Vision:
    """The vision actor: decodes images and cuts each into patches, one image at a time.

    Args:
        store: the embeddings of earlier images; None for a session without a store.
    """

    def __init__(self, store: PictureStore | None = None):
        self._store = store

    async def handle(self, message: Message) -> list[Message]:
        """Answer CutPicture with PictureCut, and store the embeddings of PictureRead."""
        match message:
            case CutPicture(request_id, picture, is_first_tower):
                outcome = await to_thread.run_sync(self._prepare, picture, is_first_tower, abandon_on_cancel=True)
                return [PictureCut(request_id, picture.digest, outcome)]
            case PictureRead(digest, pieces, tokens):
                await to_thread.run_sync(self._keep, digest, pieces, tokens, abandon_on_cancel=True)
                return []
        raise wrong_receiver("vision actor", message)

    def _prepare(self, picture: Picture, is_first_tower: bool) -> Patches | StoredPicture | Exception:
        if self._store is not None and is_first_tower:
            try:
                stored = self._store.read(picture.digest)
            except StorageError as error:  # the directory has become unsafe since it was opened
                self._give_up(error)
                stored = None
            if stored is not None and len(stored) == picture.tokens:
                return StoredPicture(stored)
        return cut(picture)

    def _keep(self, digest: bytes, pieces: Sequence[Any], tokens: int) -> None:
        if self._store is not None:
            try:
                self._store.write(digest, np.concatenate([np.asarray(piece) for piece in pieces])[:tokens])
            except StorageError as error:
                self._give_up(error)

    def _give_up(self, error: StorageError) -> None:
        warn(f"embeddings of images are neither read from disk nor written: {error}")
        self._store = None


def cut(picture: Picture) -> Patches | Exception:
    """Return the patches of an image, or an error for the requests with the image."""
    try:
        patches: Patches = picture.patches()
    except Exception as error:
        return error
    return patches
