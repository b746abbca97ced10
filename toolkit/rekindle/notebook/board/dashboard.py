"""The result of `session.dashboard()`: a live view of an engine in the output of a cell."""

import threading
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from rekindle import markup
from rekindle.notebook import front_end, marimo_cell
from rekindle.notebook.board.board import Board, BoardSource
from rekindle.notebook.board.board_html import board_bundle
from rekindle.notebook.board.live import Live
from rekindle.notebook.board.panel import Panel
from rekindle.notebook.board.rates import Rates

STILL = "a picture of this moment: install anywidget to see it move"
"""The note below a dashboard without updates."""


class Dashboard:
    """A live dashboard of an engine's speed, slots, pages and requests, in the output of a cell.

    The updates stop when the output is closed, when the session ends, or at `stop()`; the last snapshot stays in the
    output. A notebook saved or exported during the updates has the snapshot of that moment. Outside notebooks, the
    dashboard prints as a text table. Without anywidget, a note below says that it is not updated.
    """

    def __init__(self, source: BoardSource):
        self._source: BoardSource | None = source
        self._rates = Rates()
        self._lock = threading.Lock()
        self._panel: Panel | None = None
        self._live: Live | None = None
        self._unregister: Callable[[], None] | None = None
        self._last: Board
        self._look()

    def stop(self) -> None:
        """Stop the updates. Thread-safe; can be called repeatedly."""
        if (live := self._live) is not None:
            live.stop()
        else:
            self._finish()

    def __repr__(self) -> str:
        return str(self._look())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        board = self._look()
        bundle = board_bundle(board)
        if front_end.in_notebook() and not board.facts.has_ended:
            bundle["text/html"] += markup.note(STILL)
        return bundle

    def _display_(self) -> object:
        """Show the dashboard in a cell of marimo: its display protocol."""
        if self._source is None or marimo_cell.context() is None:
            return marimo_cell.html(self._repr_mimebundle_()["text/html"])
        try:
            panel = Panel(self._source, whole=True)
        except ImportError:
            return marimo_cell.html(self._repr_mimebundle_()["text/html"])
        panel.show(self._look())
        self._panel = panel
        self._live = Live(self._look, panel, self._finish)
        self._live.start()
        return panel.face.widget

    def _ipython_display_(self) -> None:
        """Show the dashboard in a live output. IPython calls this first.

        Raises:
            NotImplementedError: no live output is possible; IPython then uses `_repr_mimebundle_`.
        """
        board = self._look()
        if self._source is None or front_end.kernel() is None:
            raise NotImplementedError("a live dashboard needs a notebook and a running engine")
        if self._panel is None:
            try:
                self._panel = Panel(self._source)
            except Exception as error:  # of any kind: IPython would print the traceback
                raise NotImplementedError("a live dashboard needs anywidget") from error
        self._panel.open(board)
        if self._live is None:
            self._unregister = front_end.after_cells(self._draw)
            self._live = Live(self._look, self._panel, self._finish)
            self._live.start()

    def _draw(self) -> None:
        """Show a snapshot at the end of a cell, the last opportunity for output in a tool like nbconvert."""
        if (panel := self._panel) is not None:
            panel.show(self._look())

    def _look(self) -> Board:
        """Take a snapshot; after the end of the updates, return the last one."""
        with self._lock:
            if self._source is not None:
                at = perf_counter()
                facts = self._source.look(at)
                self._last = Board(facts, self._rates.look(at, facts.stats.scheduler.generated_tokens))
            return self._last

    def _finish(self) -> None:
        """Release the engine, and draw the final snapshot in the outputs, so that a reopened notebook has it."""
        last = _final(self._look())
        with self._lock:
            if self._source is None:
                return
            self._source, self._last = None, last
        if self._unregister is not None:
            self._unregister()
        if self._panel is not None:
            self._panel.finish(last)
        self._panel = self._live = self._unregister = None


def _final(board: Board) -> Board:
    """Return the final snapshot of a stopped dashboard; the engine may still run."""
    facts = board.facts
    if facts.has_ended:
        return board
    return replace(board, facts=replace(facts, state=f"{facts.state} when the dashboard stopped", has_ended=True))
