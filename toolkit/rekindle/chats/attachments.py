"""Images for the next message of a chat in a notebook: chosen, pasted or dropped."""

from collections.abc import Mapping
from typing import Any

from rekindle import markup
from rekindle.chats.dropping import Files, drop_zone
from rekindle.core.errors import RekindleError
from rekindle.formats.images.sources import ImageFile, image_file
from rekindle.formats.images.writing import description, thumbnails

SIDE = 72
"""The most pixels of a side of a thumbnail."""


class Attachments:
    """Images for the next message, each with its thumbnail and a button to remove it.

    Args:
        no_images: the reason why the model takes no images, in answer to each file; "" if it does.

    Attributes:
        images: the images, oldest first.
        tray: the widget of the thumbnails, with the reason why the last file was not taken.
        chooser: the widget with the button for files; None for a model without images.
    """

    def __init__(self, no_images: str):
        from ipywidgets import HBox, Layout

        self.images: list[ImageFile] = []
        self._no_images = no_images
        self.chooser = None if no_images else HBox()
        self._button: Any = None
        self._cards: list[Any] = []
        self._zone = drop_zone(Files(self._add, self._refuse))
        self.tray = HBox(layout=Layout(display="flex", flex_flow="row wrap", align_items="flex-end"))
        self._show("")
        self._renew_button()

    def complain(self, reason: str) -> None:
        """Show a reason below the input, until the next image."""
        self._show(reason)

    def clear(self) -> None:
        """Remove all images and the reason."""
        self.images.clear()
        for card in self._cards:
            close(card)
        self._cards.clear()
        self._show("")

    def close(self) -> None:
        """Close all widgets."""
        for widget in (self.tray, self.chooser):
            close(widget)

    def _add(self, name: str, data: bytes) -> None:
        """Add the image of a file, or show the reason why it is none."""
        if self._no_images:
            self._refuse(name, self._no_images)
            return
        try:
            image = image_file(data)
            ((url, _),) = thumbnails([image], 2 * SIDE)
            if not url:  # damaged behind its header
                image.pixels()
        except RekindleError as error:
            self._refuse(name, str(error))
            return
        self.images.append(image)
        self._cards.append(self._card(name, image, url))
        self._show("")

    def _refuse(self, name: str, reason: str) -> None:
        self._show(f"{name}: {reason}")

    def _card(self, name: str, image: ImageFile, url: str) -> Any:
        """Return the thumbnail of an image with its button."""
        from ipywidgets import HTML, Button, Layout, VBox

        picture = HTML(markup.thumbnails([(url, f"{name}, {description(image)}")], SIDE))
        button = Button(description="Remove", icon="times", tooltip=f"Remove {name}", layout=Layout(width="auto"))
        card = VBox([picture, button], layout=Layout(align_items="center", margin="0 0.6em 0 0"))
        button.on_click(lambda _: self._remove(card, image))
        return card

    def _remove(self, card: Any, image: ImageFile) -> None:
        self._cards.remove(card)
        self.images[:] = [each for each in self.images if each is not image]
        self._show("")
        close(card)

    def _show(self, reason: str) -> None:
        """Draw the images, and a reason below them."""
        from ipywidgets import HTML, Layout

        old = [child for child in self.tray.children if child not in self._cards and child is not self._zone]
        html = f'<div role="alert">{markup.passage(reason)}</div>'
        reasons = [HTML(html, layout=Layout(flex="1 1 100%"))] if reason else []
        zone = [] if self._zone is None else [self._zone]
        self.tray.children = (*self._cards, *reasons, *zone)
        for child in old:
            close(child)

    def _renew_button(self) -> None:
        """Replace the button for files: no version of ipywidgets resets its count alike."""
        from ipywidgets import FileUpload, Layout

        if self.chooser is None:
            return
        old, narrow = self._button, Layout(width="auto", flex="0 0 auto")
        self._button = FileUpload(accept="image/*", multiple=True, description="Images", layout=narrow)
        self._button.observe(self._on_files, "value")
        self.chooser.children = (self._button,)
        close(old)

    def _on_files(self, change: Any) -> None:
        """Add the chosen files."""
        value = change["new"]
        if isinstance(value, Mapping):  # ipywidgets 7 has a dict by name
            files = [(name, file["content"]) for name, file in value.items()]
        else:
            files = [(file["name"], file["content"]) for file in value]
        if files:
            self._renew_button()
        for name, data in files:
            self._add(name, bytes(data))


def close(widget: Any) -> None:
    """Close a widget with its children, style and layout, if there is one."""
    for child in getattr(widget, "children", ()):
        close(child)
    for part in (widget, getattr(widget, "layout", None), getattr(widget, "style", None)):
        if part is not None:
            part.close()
