"""Outputs of a live dashboard: the snapshot as HTML, and the buttons below."""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from rekindle.core.errors import SessionError
from rekindle.notebook import front_end
from rekindle.notebook.board.board import Board, BoardSource
from rekindle.notebook.board.board_html import board_bundle

BUTTON_AFTER = 1.0
"""The minimum age of a request with a button, in seconds; earlier, the button could vanish before a click."""
RETIRED = 64
"""The maximum number of hidden buttons of ended requests. A late click on a closed one would log an error."""


class Buttons:
    """The buttons of a dashboard: one to pause or resume, and one to cancel each request.

    Args:
        source: the engine behind the dashboard.

    Attributes:
        toggle: the button to pause or resume.
        row: the widget with the buttons.
    """

    def __init__(self, source: BoardSource):
        from ipywidgets import Button, ButtonStyle, HBox, Layout

        self._source = source
        self._is_paused = False
        self._new = partial(Button, layout=Layout(width="auto"), style=ButtonStyle())
        self._cancels: dict[int, Any] = {}
        self._retired: deque[Any] = deque()
        self.toggle = self._button("Pause", self._pause_or_resume)
        self.row = HBox([self.toggle])

    def update(self, board: Board) -> None:
        """Offer the currently possible actions."""
        facts = board.facts
        self._is_paused = facts.state == "paused"
        self.toggle.description = "Resume" if self._is_paused else "Pause"
        for request_id in self._cancels.keys() - facts.requests.keys():
            self._retire(self._cancels.pop(request_id))
        for request_id, now in facts.requests.items():
            if request_id not in self._cancels and now.seconds >= BUTTON_AFTER:
                cancel = partial(self._source.cancel, request_id)
                self._cancels[request_id] = self._button(f"Cancel {request_id}", cancel)
        self.row.children = (self.toggle, *self._cancels.values())

    def widgets(self) -> tuple[Any, ...]:
        """Return all buttons and the row."""
        return (self.toggle, *self._cancels.values(), *self._retired, self.row)

    def _button(self, description: str, press: Callable[[], None]) -> Any:
        button = self._new(description=description)
        button.on_click(lambda _: press())
        return button

    def _pause_or_resume(self) -> None:
        with suppress(SessionError):  # the engine has ended, as the next snapshot will show
            (self._source.resume if self._is_paused else self._source.pause)()

    def _retire(self, button: Any) -> None:
        self._retired.append(button)
        if len(self._retired) > RETIRED:
            self._retired.popleft().close()


class Panel:
    """The outputs and the buttons of one dashboard. All methods are thread-safe.

    Only the buttons are widgets. The snapshot is HTML, so it is part of a saved notebook.

    Attributes:
        root: the root widget.
        was_viewed: True after the first report of a view by a front end.
    """

    def __init__(self, source: BoardSource):
        from ipywidgets import VBox

        self._buttons = Buttons(source)
        self._outputs: list[tuple[front_end.CellOutput, front_end.CellOutput]] = []
        self._lock = threading.RLock()
        self.was_viewed = self._is_final = False
        self.root = VBox([self._buttons.row], _view_count=0)
        self.root.observe(self._on_view_count, "_view_count")

    @property
    def viewed(self) -> bool:
        """True if a front end currently displays the widgets, according to its reports."""
        return bool(self.root._view_count) and self._buttons.row._view_count != 0

    @property
    def closed(self) -> bool:
        """True if the widgets are closed."""
        return self.root.comm is None

    def open(self, board: Board) -> None:
        """Add outputs with the snapshot and the buttons in the running cell."""
        with self._lock:
            snapshot, buttons = front_end.CellOutput(), front_end.CellOutput()
            snapshot.draw(board_bundle(board))
            buttons.draw({"text/plain": "", front_end.VIEW: self.root.get_view_spec()})
            self._outputs.append((snapshot, buttons))
        self.show(board)

    def show(self, board: Board) -> None:
        """Show a snapshot, unless the final one was already shown."""
        with self._lock:
            if self._is_final:
                return
            self._draw(board)
            self._copy_view_count()
            self._buttons.update(board)

    def finish(self, board: Board) -> None:
        """Show the final snapshot, and remove the buttons."""
        with self._lock:
            self._is_final = True
            self._draw(board)
            for _, buttons in self._outputs:
                buttons.draw(front_end.EMPTY)

    def close(self) -> None:
        """Close the widgets if a front end has reported a view; otherwise, leave them open.

        The report may still be on its way, and the kernel would log an error for a message to a closed widget.
        """
        if not self.was_viewed:
            return
        for widget in (*self._buttons.widgets(), self.root):
            for part in (widget, widget.layout, getattr(widget, "style", None)):
                if part is not None:
                    part.close()

    def _draw(self, board: Board) -> None:
        for snapshot, _ in self._outputs:
            snapshot.draw(board_bundle(board))

    def _on_view_count(self, change: Any) -> None:
        self.was_viewed = self.was_viewed or bool(change["new"])

    def _copy_view_count(self) -> None:
        """Copy the view count of the root to the row, to let the front end report the closing of the views.

        A front end delays the next change of a widget until the kernel is idle after the previous change. ipykernel 7.4
        does not report idle after messages handled while a cell awaits. So the root reports the opening of a view, and
        the row, without an earlier change, reports the closing.
        """
        row = self._buttons.row
        if row._view_count is None and self.root._view_count:
            row._view_count = self.root._view_count
