"""The vision actor: cuts images into patches, in a worker thread."""

from anyio import to_thread

from rekindle.core.messages import CutPicture, Message, PictureCut
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.models.vision.patches import Patches
from rekindle.core.request.picture import Picture


class Vision:
    """The vision actor: decodes images and cuts each into patches, one image at a time."""

    async def handle(self, message: Message) -> list[Message]:
        """Answer CutPicture with PictureCut."""
        if not isinstance(message, CutPicture):
            raise wrong_receiver("vision actor", message)
        outcome = await to_thread.run_sync(cut, message.picture, abandon_on_cancel=True)
        return [PictureCut(message.request_id, message.picture.digest, outcome)]


def cut(picture: Picture) -> Patches | Exception:
    """Return the patches of an image, or an error for the requests with the image."""
    try:
        patches: Patches = picture.patches()
    except Exception as error:
        return error
    return patches
