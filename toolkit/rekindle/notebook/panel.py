"""The widgets of a dashboard: all that one can see and press of it."""

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from rekindle.errors import SessionError
from rekindle.notebook.board import Board, Source
from rekindle.notebook.board_html import overview_html, requests_html

BUTTON_AFTER = 1.0
"""Seconds that a request has to be under way before it gets a button: buttons of short ones could not be hit."""
RETIRED = 64
"""Buttons of requests that ended which are kept, out of sight: a kernel says in its log that a click came too late."""


class Panel:
    """Core widgets alone. A widget sends what is changed of it; one thread at a time may show something.

    Args:
        source: what the buttons act on.

    Attributes:
        root: the widget that contains the others.
        seen: whether a front end has ever said that it shows it.
    """

    def __init__(self, source: Source):
        from ipywidgets import HTML, Button, ButtonStyle, HBox, Layout, VBox

        self._source = source
        self._paused = self.seen = False
        self._shared = {"layout": Layout(width="auto"), "style": ButtonStyle()}
        self._button_class = Button
        self._toggle = self._button("Pause", self._pause_or_resume)
        self._cancels: dict[int, Any] = {}
        self._retired: deque[Any] = deque()
        self._overview, self._requests = HTML(), HTML()
        self._row = HBox([self._toggle])
        self.root = VBox([self._overview, self._row, self._requests], _view_count=0)
        self.root.observe(self._counted, "_view_count")

    @property
    def viewed(self) -> bool:
        """Whether a front end shows it now, as far as has been heard."""
        return bool(self.root._view_count) and self._row._view_count != 0

    @property
    def closed(self) -> bool:
        """Whether somebody has closed it."""
        return self.root.comm is None

    def show(self, board: Board) -> None:
        """Show this snapshot."""
        facts = board.facts
        self._count_closing()
        self._paused = facts.state == "paused"
        self._toggle.description = "Resume" if self._paused else "Pause"
        self._overview.value = overview_html(board)
        self._requests.value = requests_html(board)
        for request_id in self._cancels.keys() - facts.requests.keys():
            self._retire(self._cancels.pop(request_id))
        for request_id, now in facts.requests.items():
            if request_id not in self._cancels and now.seconds >= BUTTON_AFTER:
                cancel = partial(self._source.cancel, request_id)
                self._cancels[request_id] = self._button(f"Cancel {request_id}", cancel)
        self._row.children = (self._toggle, *self._cancels.values())

    def close(self) -> None:
        """Take it out of the front end, unless no front end has said yet that it shows it.

        It may be about to say so, and a kernel's log says what comes for a widget that is closed.
        """
        if not self.seen:
            return
        buttons = (self._toggle, *self._cancels.values(), *self._retired)
        for widget in (*buttons, self._overview, self._requests, self._row, self.root):
            for part in (widget, widget.layout, getattr(widget, "style", None)):
                if part is not None:
                    part.close()

    def _button(self, description: str, press: Any) -> Any:
        button = self._button_class(description=description, **self._shared)
        button.on_click(lambda _: press())
        return button

    def _counted(self, change: Any) -> None:
        self.seen = self.seen or bool(change["new"])

    def _count_closing(self) -> None:
        """Have a second widget tell when the views are closed.

        A front end keeps a widget's next change back until the kernel was idle after the last one, which ipykernel 7.4
        does not say of what it handles while a cell awaits. So one widget says that it is shown, and another one, which
        has not said anything before, that it is not any more.
        """
        if self._row._view_count is None and self.root._view_count:
            self._row._view_count = self.root._view_count

    def _pause_or_resume(self) -> None:
        with suppress(SessionError):  # it has ended, as will be seen in a moment
            (self._source.resume if self._paused else self._source.pause)()

    def _retire(self, button: Any) -> None:
        self._retired.append(button)
        if len(self._retired) > RETIRED:
            self._retired.popleft().close()
