"""Outputs of a live dashboard: the snapshot as HTML, and the buttons below."""

import threading
from contextlib import suppress
from typing import Any

from rekindle.core.errors import SessionError
from rekindle.notebook import front_end
from rekindle.notebook.board.board import Board, BoardSource
from rekindle.notebook.board.board_html import board_bundle, board_html
from rekindle.notebook.face import Face, button

BUTTON_AFTER = 1.0
"""The minimum age of a request with a button, in seconds; earlier, the button could vanish before a click."""
OTHERWISE = "(without widgets: session.pause(), session.resume() and request.cancel())"
"""The text in place of the buttons, where a front end shows no widgets."""


class Panel:
    """The outputs and the buttons of one dashboard. All methods are thread-safe.

    In Jupyter, only the buttons are a widget: the snapshot is HTML, so it is part of a saved notebook. In marimo, which
    keeps widgets in its exports, one widget has both.

    Args:
        source: the engine behind the dashboard.
        whole: True for a widget with the snapshot above its buttons.

    Attributes:
        face: the widget.
        was_viewed: True after the first report of a view by a front end.

    Raises:
        ImportError: anywidget is not installed.
    """

    def __init__(self, source: BoardSource, *, whole: bool = False):
        from ipywidgets import VBox

        self._source: BoardSource | None = source
        self._whole, self._is_paused = whole, False
        self.face = Face(self._press)
        self._outputs: list[tuple[front_end.CellOutput, front_end.CellOutput]] = []
        self._lock = threading.RLock()
        self.was_viewed = self._is_final = False
        self._root = VBox([self.face.widget], _view_count=0)
        self._root.observe(self._on_view_count, "_view_count")

    @property
    def viewed(self) -> bool:
        """True if a front end currently displays the widgets, according to its reports."""
        return bool(self._root._view_count) and self.face.widget._view_count != 0

    @property
    def closed(self) -> bool:
        """True if the widgets are closed."""
        return self.face.widget.comm is None

    def open(self, board: Board) -> None:
        """Add outputs with the snapshot and the buttons in the running cell."""
        with self._lock:
            snapshot, buttons = front_end.CellOutput(), front_end.CellOutput()
            snapshot.draw(board_bundle(board))
            buttons.draw(front_end.widget_bundle(self._root, OTHERWISE))
            self._outputs.append((snapshot, buttons))
        self.show(board)

    def show(self, board: Board) -> None:
        """Show a snapshot, unless the final one was already shown."""
        with self._lock:
            if self._is_final:
                return
            self._is_paused = board.facts.state == "paused"
            self._draw(board, self._buttons(board))
            self._copy_view_count()

    def finish(self, board: Board) -> None:
        """Show the final snapshot, remove the buttons, and release the engine."""
        with self._lock:
            self._is_final, self._source = True, None
            self._draw(board, "")
            for _, buttons in self._outputs:
                buttons.draw(front_end.EMPTY)

    def close(self) -> None:
        """Close the widgets if a front end has reported a view; otherwise, leave them open.

        The report may still be on its way, and the kernel would log an error for a message to a closed widget.
        """
        if not self.was_viewed:
            return
        self.face.close()
        self._root.layout.close()
        self._root.close()

    def _draw(self, board: Board, buttons: str) -> None:
        for snapshot, _ in self._outputs:
            snapshot.draw(board_bundle(board))
        self.face.draw(board_html(board) + buttons if self._whole else buttons)

    def _buttons(self, board: Board) -> str:
        """Return buttons for the currently possible actions: to pause or resume, and to cancel each older request."""
        toggle = button("toggle", "Resume" if self._is_paused else "Pause")
        old = [number for number, now in board.facts.requests.items() if now.seconds >= BUTTON_AFTER]
        return f"<div>{toggle}{''.join(button(f'{number}', f'Cancel {number}') for number in old)}</div>"

    def _press(self, name: str) -> None:
        if (source := self._source) is None:
            return
        if name != "toggle":
            source.cancel(int(name))
            return
        with suppress(SessionError):  # the engine has ended, as the next snapshot will show
            (source.resume if self._is_paused else source.pause)()

    def _on_view_count(self, change: Any) -> None:
        self.was_viewed = self.was_viewed or bool(change["new"])

    def _copy_view_count(self) -> None:
        """Copy the view count of the root to the face, to let the front end report the closing of the views.

        A front end delays the next change of a widget until the kernel is idle after the previous change. ipykernel 7.4
        does not report idle after messages handled while a cell awaits. So the root reports the opening of a view, and
        the face, without an earlier change, reports the closing.
        """
        if self.face.widget._view_count is None and self._root._view_count:
            self.face.widget._view_count = self._root._view_count
