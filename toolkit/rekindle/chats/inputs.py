"""Input box of a chat in a notebook, with its buttons."""

from collections.abc import Callable, Sequence
from typing import Any

from rekindle.chats.attachments import Attachments, close
from rekindle.chats.dropping import ZONE
from rekindle.formats.images.sources import ImageFile
from rekindle.notebook import front_end

HINT = "Say something, and press Enter"


class Inputs:
    """Input box with its buttons. The kernel receives a line of text as a change of the box that ends in a line end.

    A front end sends changes of one widget in order, so the end of the line comes with the whole line.

    Args:
        send: sends a text with its images; returns False if it cannot be sent now.
        stop: stops the answer.
        no_images: the reason why the model takes no images; "" if it does.
    """

    def __init__(self, send: Callable[[str, Sequence[ImageFile]], bool], stop: Callable[[], None], *, no_images: str):
        from ipywidgets import Button, HBox, Layout, Textarea, VBox

        self._attachments = Attachments(no_images)
        self._send, self._output = send, front_end.CellOutput()
        narrow = Layout(width="auto", flex="0 0 auto")
        self._box = Textarea(
            description="You", placeholder=HINT, rows=1, layout=Layout(flex="1 1 12em", width="auto", min_width="0")
        )
        self._box.style.description_width = "initial"
        self._sender = Button(description="Send", layout=narrow)
        self._stopper = Button(description="Stop", icon="stop", layout=narrow, disabled=True)
        self._box.observe(self._on_text, "value")
        self._sender.on_click(lambda _: self._submit())
        self._stopper.on_click(lambda _: stop())
        wrapped = Layout(display="flex", flex_flow="row wrap", align_items="center")
        files = [] if self._attachments.chooser is None else [self._attachments.chooser]
        row = HBox([self._box, *files, self._sender, self._stopper], layout=wrapped)
        self._root = VBox([row, self._attachments.tray], layout=Layout(max_width="72em"))
        self._root.add_class(ZONE)

    def show(self) -> None:
        """Draw the input in the running cell."""
        self._output = front_end.CellOutput()
        self._output.draw({"text/plain": "", front_end.VIEW: self._root.get_view_spec()})

    def show_busy(self, busy: bool) -> None:
        """Enable the button that is of use now."""
        self._sender.disabled, self._stopper.disabled = busy, not busy

    def close(self) -> None:
        """Remove the input."""
        self._output.draw(front_end.EMPTY)
        self._attachments.close()
        close(self._root)

    def _on_text(self, change: Any) -> None:
        if change["new"].endswith("\n"):
            self._submit()

    def _submit(self) -> None:
        text: str = self._box.value
        images = tuple(self._attachments.images)
        is_sent = bool(text.strip()) and self._send(text.strip(), images)
        if is_sent:
            self._attachments.clear()
        elif images and not text.strip():
            self._attachments.complain("say something about the images, and press Enter")
        rest = "" if is_sent else text.rstrip("\n")
        if rest != text:
            self._box.value = rest
