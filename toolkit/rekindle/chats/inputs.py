"""Input box of a chat in a notebook, with its buttons."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rekindle.notebook import front_end

HINT = "Say something, and press Enter"


class Inputs:
    """Input box with its buttons. The kernel receives a line of text as a change of the box that ends in a line end.

    A front end sends changes of one widget in order, so the end of the line comes with the whole line.

    Args:
        send: sends a text with the files of its images; returns False if it cannot be sent now.
        stop: stops the answer.
        takes_images: whether there is a button for files of images.
    """

    def __init__(self, send: Callable[[str, Sequence[bytes]], bool], stop: Callable[[], None], *, takes_images: bool):
        from ipywidgets import Button, HBox, Layout, Textarea

        self._files = _Files() if takes_images else None
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
        row = Layout(display="flex", flex_flow="row wrap", align_items="center", max_width="72em")
        files = [] if self._files is None else [self._files.root]
        self._root = HBox([self._box, *files, self._sender, self._stopper], layout=row)

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
        for widget in (self._box, self._sender, self._stopper, self._root):
            _close(widget)
        if self._files is not None:
            self._files.close()

    def _on_text(self, change: Any) -> None:
        if change["new"].endswith("\n"):
            self._submit()

    def _submit(self) -> None:
        text: str = self._box.value
        files = () if self._files is None else self._files.contents
        is_sent = bool(text.strip()) and self._send(text.strip(), files)
        if is_sent and self._files is not None:
            self._files.clear()
        rest = "" if is_sent else text.rstrip("\n")
        if rest != text:
            self._box.value = rest


class _Files:
    """Button to choose the files of images for the next message.

    Attributes:
        root: the widget with the button.
    """

    def __init__(self) -> None:
        from ipywidgets import HBox

        self.root = HBox()
        self._button: Any = None
        self.clear()

    @property
    def contents(self) -> tuple[bytes, ...]:
        """The chosen files."""
        value = self._button.value
        files = value.values() if isinstance(value, Mapping) else value  # ipywidgets 7 has a dict by name
        return tuple(bytes(file["content"]) for file in files)

    def clear(self) -> None:
        """Forget the chosen files. A new button takes the place of the old one: no version resets its count alike."""
        from ipywidgets import FileUpload, Layout

        old, narrow = self._button, Layout(width="auto", flex="0 0 auto")
        self._button = FileUpload(accept="image/*", multiple=True, description="Images", layout=narrow)
        self.root.children = (self._button,)
        _close(old)

    def close(self) -> None:
        """Remove the button."""
        _close(self._button)
        _close(self.root)


def _close(widget: Any) -> None:
    """Close a widget with its style and layout, if there is one."""
    for part in (widget, getattr(widget, "layout", None), getattr(widget, "style", None)):
        if part is not None:
            part.close()
