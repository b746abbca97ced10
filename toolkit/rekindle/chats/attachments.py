"""Images for the next message of a chat in a notebook: chosen, pasted or dropped."""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from rekindle import markup
from rekindle.core.errors import RekindleError
from rekindle.formats.images.sources import ImageFile, decoded, image_file
from rekindle.formats.images.writing import description, thumbnails
from rekindle.notebook.face import button

SIDE = 72
"""The most pixels of a side of a thumbnail."""
REMOVE = "remove."
"""The beginning of the names of the buttons; the number of an image follows."""


class _Card(NamedTuple):
    """An image with its file's name and the URL of its thumbnail."""

    name: str
    image: ImageFile
    url: str


class Attachments:
    """Images for the next message, each with its thumbnail and a button to remove it.

    Args:
        no_images: the reason why the model takes no images, in answer to each file; "" if it does.
        changed: the function to call after each change.
    """

    def __init__(self, no_images: str, changed: Callable[[], None]):
        self._no_images, self._changed = no_images, changed
        self._numbers, self._cards, self._reason = count(), dict[int, _Card](), ""

    @property
    def images(self) -> list[ImageFile]:
        """The images, oldest first."""
        return [card.image for card in self._cards.values()]

    @property
    def html(self) -> str:
        """The thumbnails as HTML, with the reason why the last file was not taken; "" without any."""
        cards = "".join(
            f'<div style="text-align:center;margin:0.4em 0.6em 0 0">'
            f"{markup.thumbnails([(card.url, f'{card.name}, {description(card.image)}')], SIDE)}"
            f"{button(f'{REMOVE}{number}', 'Remove', hover=f'Remove {card.name}')}</div>"
            for number, card in self._cards.items()
        )
        reason = f'<div role="alert">{markup.passage(self._reason)}</div>' if self._reason else ""
        return (cards and f'<div style="display:flex;flex-flow:row wrap;align-items:flex-end">{cards}</div>') + reason

    def complain(self, reason: str) -> None:
        """Show a reason below the input, until the next image."""
        self._reason = reason
        self._changed()

    def clear(self) -> None:
        """Remove all images and the reason."""
        self._cards.clear()
        self.complain("")

    def add(self, name: str, data: bytes) -> None:
        """Add the image of a file, or show the reason why it is none."""
        if self._no_images:
            self.refuse(name, self._no_images)
            return
        try:
            image = image_file(data)
            ((url, _),) = thumbnails([image], 2 * SIDE)
            if not url:  # damaged behind its header
                with decoded([image]):
                    pass  # for its error
        except RekindleError as error:
            self.refuse(name, str(error))
            return
        self._cards[next(self._numbers)] = _Card(name, image, url)
        self.complain("")

    def refuse(self, name: str, reason: str) -> None:
        """Show the reason why a file is not taken."""
        self.complain(f"{name}: {reason}")

    def remove(self, press: str) -> None:
        """Remove an image, by the name of its button."""
        self._cards.pop(int(press.removeprefix(REMOVE)), None)
        self.complain("")
