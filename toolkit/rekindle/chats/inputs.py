"""Input box of a chat in a notebook, with its buttons."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rekindle import markup
from rekindle.chats import actions, dropping
from rekindle.chats.actions import Press
from rekindle.chats.attachments import REMOVE, Attachments
from rekindle.chats.dropping import ZONE, Files
from rekindle.chats.resuming import is_offer
from rekindle.formats.images.sources import ImageFile
from rekindle.notebook import front_end
from rekindle.notebook.face import Face, button

EDITS = "an edit of a message: Enter puts it in place of the old text"
"""The note above the box during an edit."""
KEEP = "keep"
"""The button that ends an edit."""
HINT = "Say something, and press Enter"
OTHERWISE = "(without widgets: await chat.show('...') says something)"
"""The text in place of the box, where a front end shows no widgets."""
FIELD = (
    "flex:1 1 12em;min-width:0;min-height:2em;box-sizing:border-box;font:inherit;color:inherit;background:transparent;"
    "border:1px solid rgba(128,128,128,0.7);border-radius:8px;padding:0.2em 0.6em;margin:0.4em 0.4em 0 0;"
    "field-sizing:content;resize:vertical"
)
"""The style of the box."""
SCRIPT = f"""{dropping.SCRIPT}{actions.SCRIPT}
function extend(page) {{
  const leaves = [drop(page), act(page)]
  return () => leaves.forEach(leave => leave())
}}
"""
"""The script of the widget's page, for a `Face`."""


class UpperPart:
    """An output above the input in the same widget, as HTML.

    Args:
        changed: the function to call after each change.
    """

    def __init__(self, changed: Callable[[], None]):
        self.html, self._changed = "", changed

    def draw(self, bundle: Mapping[str, object]) -> None:
        """Show content by MIME type, in place of the former."""
        self.html = str(bundle["text/html"])
        self._changed()


class TextReceiver(Protocol):
    """Receiver of texts and presses."""

    def send(self, text: str, images: Sequence[ImageFile]) -> bool:
        """Send a text with its images; return False if it cannot be sent now."""

    def replace(self, place: int, text: str) -> bool:
        """Replace the text of a message by its index; return False if it cannot be replaced now."""

    def stop(self) -> None:
        """Stop the answer."""

    def act(self, press: Press) -> None:
        """Take the press of a button on a message."""

    def resume(self, name: str) -> None:
        """Take the press of a button of an earlier conversation."""


class Inputs:
    """Input box with its buttons.

    The page sends a text at Enter, or at a press of "Send", and empties its box. A text that is not taken goes back.

    Args:
        talk: the receiver.
        no_images: the reason why the model takes no images; "" if it does.

    Attributes:
        face: the widget.

    Raises:
        ImportError: anywidget is not installed.
    """

    def __init__(self, talk: TextReceiver, *, no_images: str):
        self._lock = threading.RLock()
        self._talk, self._is_busy = talk, False
        self._above, self._spare = "", ""
        self._place: int | None = None  # of the message in an edit
        self._chooser = "" if no_images else _chooser()
        self._parts: list[UpperPart] = []
        self._attachments = Attachments(no_images, self._draw)
        self._files = Files(self._attachments.add, self._attachments.refuse)
        self._output: front_end.CellOutput | None = None
        self.face = Face(self._press, SCRIPT, self._take)
        self._draw()

    def part(self) -> UpperPart:
        """Return a new output above the input, below the former ones."""
        self._parts.append(UpperPart(self._draw))
        return self._parts[-1]

    def show(self) -> None:
        """Draw the input in the running cell."""
        self._output = front_end.CellOutput()
        self._output.draw(front_end.widget_bundle(self.face.widget, OTHERWISE))

    def show_busy(self, busy: bool) -> None:
        """Enable the button that is of use now."""
        self._is_busy = busy
        self._draw()

    def show_above(self, html: str) -> None:
        """Show HTML above the box, in place of the former."""
        if html != self._above:
            self._above = html
            self._draw()

    def show_acts(self, spare: str) -> None:
        """Show the buttons of the last message, for pages without them on each message; see `actions.spare`."""
        self._spare = spare
        self._draw()

    def edit(self, place: int | None, text: str = "") -> None:
        """Show the text of a message in the box, for an edit; None ends the edit."""
        self._place = place
        self.face.widget.send({"text": text, "edit": True})
        self._draw()

    def close(self) -> None:
        """Remove the input."""
        if self._output is not None:
            self._output.draw(front_end.EMPTY)
        self.face.close()

    def _draw(self) -> None:
        with self._lock:
            above = "".join(f"<div>{part.html}</div>" for part in self._parts)
            note = f"{markup.note(EDITS)}{button(KEEP, 'Keep as it is')}" if self._place is not None else ""
            row = (
                f'<textarea aria-label="You" rows="1" placeholder="{HINT}" style="{FIELD}"></textarea>{self._chooser}'
                f"{button('send', 'Send', more=_usable(not self._is_busy))}"
                f"{button('stop', 'Stop', more=_usable(self._is_busy))}"
            )
            self.face.draw(  # with equally many parts always, so that the box keeps its text
                f"{above}<div>{self._above}</div>"
                f'<div class="{ZONE}" style="max-width:72em"><div>{self._spare}</div><div>{note}</div>'
                f'<div style="display:flex;flex-flow:row wrap;align-items:flex-start">{row}</div>'
                f"{self._attachments.html}</div>"
            )

    def _press(self, name: str) -> None:
        if name == "stop":
            self._talk.stop()
        elif name == KEEP:
            self.edit(None)
        elif is_offer(name):
            self._talk.resume(name)
        elif name.startswith(REMOVE):
            self._attachments.remove(name)
        elif name != "send":  # the script sends the text
            self._talk.act(Press.of(name))

    def _take(self, content: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Take a text, or a part of a file."""
        if "text" in content:
            self._submit(content["text"].strip())
        else:
            self._files.take(content, buffers)

    def _submit(self, text: str) -> None:
        images = tuple(self._attachments.images)
        if not text:
            if images:
                self._attachments.complain("say something about the images, and press Enter")
        elif self._talk.send(text, images) if self._place is None else self._talk.replace(self._place, text):
            self._place = None
            self._attachments.clear()
        else:
            self.face.widget.send({"text": text})


def _usable(usable: bool) -> str:
    return "" if usable else " disabled"


def _chooser() -> str:
    """Return a button to choose files, which is a label of the page's own input."""
    hidden = "position:absolute;width:1px;height:1px;opacity:0"
    return (
        '<label class="rekindle-press" style="position:relative">Images'
        f'<input type="file" accept="image/*" multiple style="{hidden}"></label>'
    )
