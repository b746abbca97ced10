"""The outputs of a dashboard that moves: the snapshot as HTML, and below it the buttons."""

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from rekindle.core.errors import SessionError
from rekindle.notebook import front_end
from rekindle.notebook.board.board import Board, Source
from rekindle.notebook.board.board_html import board_bundle

BUTTON_AFTER = 1.0
"""Seconds after which a request gets a button; nobody could hit the button of a shorter one."""
RETIRED = 64
"""How many buttons of ended requests are kept out of sight, so that a late click does not end up in a kernel's log."""


class Panel:
    """The outputs and the buttons of one dashboard. Any thread may call its methods.

    The snapshot is no widget: so it is in the notebook whenever that is saved. Only the buttons are widgets.

    Attributes:
        root: the widget that contains the others.
        seen: whether a front end has ever said that it shows the widgets.
    """

    def __init__(self, source: Source):
        from ipywidgets import Button, ButtonStyle, HBox, Layout, VBox

        self._source = source
        self._paused = self.seen = self._left = False
        self._shared = {"layout": Layout(width="auto"), "style": ButtonStyle()}
        self._button_class = Button
        self._toggle = self._button("Pause", self._pause_or_resume)
        self._cancels: dict[int, Any] = {}
        self._retired: deque[Any] = deque()
        self._outputs: list[tuple[front_end.CellOutput, front_end.CellOutput]] = []
        self._lock = threading.RLock()
        self._row = HBox([self._toggle])
        self.root = VBox([self._row], _view_count=0)
        self.root.observe(self._counted, "_view_count")

    @property
    def viewed(self) -> bool:
        """Tell whether a front end shows the widgets now, as far as it has said."""
        return bool(self.root._view_count) and self._row._view_count != 0

    @property
    def closed(self) -> bool:
        """Tell whether somebody has closed the widgets."""
        return self.root.comm is None

    def open(self, board: Board) -> None:
        """Show this snapshot and the buttons in the cell that runs too, from now on."""
        with self._lock:
            snapshot, buttons = front_end.CellOutput(), front_end.CellOutput()
            snapshot.draw(board_bundle(board))
            buttons.draw({"text/plain": "", front_end.VIEW: self.root.get_view_spec()})
            self._outputs.append((snapshot, buttons))
        self.show(board)

    def show(self, board: Board) -> None:
        """Show this snapshot, unless the last one was shown."""
        with self._lock:
            if self._left:
                return
            self._draw(board)
            self._count_closing()
            self._offer(board)

    def leave(self, board: Board) -> None:
        """Show the last snapshot, and take the buttons away."""
        with self._lock:
            self._left = True
            self._draw(board)
            for _, buttons in self._outputs:
                buttons.draw(front_end.EMPTY)

    def close(self) -> None:
        """Close the widgets, unless no front end has said yet that it shows them.

        It may be about to say so, and a kernel logs every message for a widget that is closed.
        """
        if not self.seen:
            return
        buttons = (self._toggle, *self._cancels.values(), *self._retired)
        for widget in (*buttons, self._row, self.root):
            for part in (widget, widget.layout, getattr(widget, "style", None)):
                if part is not None:
                    part.close()

    def _draw(self, board: Board) -> None:
        for snapshot, _ in self._outputs:
            snapshot.draw(board_bundle(board))

    def _offer(self, board: Board) -> None:
        """Have a button for each thing that can be done now."""
        facts = board.facts
        self._paused = facts.state == "paused"
        self._toggle.description = "Resume" if self._paused else "Pause"
        for request_id in self._cancels.keys() - facts.requests.keys():
            self._retire(self._cancels.pop(request_id))
        for request_id, now in facts.requests.items():
            if request_id not in self._cancels and now.seconds >= BUTTON_AFTER:
                cancel = partial(self._source.cancel, request_id)
                self._cancels[request_id] = self._button(f"Cancel {request_id}", cancel)
        self._row.children = (self._toggle, *self._cancels.values())

    def _button(self, description: str, press: Any) -> Any:
        button = self._button_class(description=description, **self._shared)
        button.on_click(lambda _: press())
        return button

    def _counted(self, change: Any) -> None:
        self.seen = self.seen or bool(change["new"])

    def _count_closing(self) -> None:
        """Have a second widget tell when the views are closed.

        A front end holds a widget's next change back until the kernel was idle after the last one, and ipykernel 7.4
        does not say that it is idle after what it handles while a cell awaits. So one widget tells that it is shown,
        and another one, which has not told anything before, that it no longer is.
        """
        if self._row._view_count is None and self.root._view_count:
            self._row._view_count = self.root._view_count

    def _pause_or_resume(self) -> None:
        with suppress(SessionError):  # the engine has ended, which the next snapshot shows
            (self._source.resume if self._paused else self._source.pause)()

    def _retire(self, button: Any) -> None:
        self._retired.append(button)
        if len(self._retired) > RETIRED:
            self._retired.popleft().close()
