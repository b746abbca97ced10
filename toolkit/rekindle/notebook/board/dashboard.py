"""What `session.dashboard()` shows: an engine as it works, in the output of a cell."""

import threading
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from rekindle.core import markup
from rekindle.notebook import front_end
from rekindle.notebook.board.board import Board, Source
from rekindle.notebook.board.board_html import board_bundle
from rekindle.notebook.board.live import Live
from rekindle.notebook.board.panel import Panel
from rekindle.notebook.board.rates import Rates


class Dashboard:
    """A dashboard of an engine's speed, slots, pages and requests, which moves in the output of the cell that shows it.

    It stops when that output is closed, when the session ends, or at `stop()`; the last snapshot stays in the output.
    A notebook that is saved or exported meanwhile has the snapshot of that moment.
    Where there is no notebook it prints as a table of text, and where there are no widgets it does not move.
    """

    def __init__(self, source: Source):
        self._source: Source | None = source
        self._rates = Rates()
        self._lock = threading.Lock()
        self._panel: Panel | None = None
        self._live: Live | None = None
        self._forget_cells: Callable[[], None] | None = None
        self._last: Board
        self._look()

    def stop(self) -> None:
        """Stop following the engine. Any thread may call this, any number of times."""
        if (live := self._live) is not None:
            live.stop()
        else:
            self._leave()

    def __repr__(self) -> str:
        return str(self._look())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return board_bundle(self._look())

    def _ipython_display_(self) -> None:
        """Show the dashboard in an output that moves. IPython calls this first.

        Raises:
            NotImplementedError: no output can move here; IPython then takes `_repr_mimebundle_`.
        """
        board = self._look()
        if self._source is None or front_end.kernel() is None:
            raise NotImplementedError("a dashboard moves only in a notebook, and while its engine has not ended")
        if self._panel is None:
            try:
                self._panel = Panel(self._source)
            except Exception as error:  # for whatever reason: IPython would print the traceback
                raise NotImplementedError("a dashboard moves only where ipywidgets works") from error
        self._panel.open(board)
        if self._live is None:
            self._forget_cells = front_end.after_cells(self._draw)
            self._live = Live(self._look, self._panel, self._leave)
            self._live.start()

    def _draw(self) -> None:
        """Show how it is at the end of a cell, after which a tool that executes notebooks hears nothing more."""
        if (panel := self._panel) is not None:
            panel.show(self._look())

    def _look(self) -> Board:
        """Take a snapshot; return the last one if the engine is followed no longer."""
        with self._lock:
            if self._source is not None:
                at = perf_counter()
                facts = self._source.look(at)
                self._last = Board(facts, self._rates.look(at, facts.stats.scheduler.generated_tokens))
            return self._last

    def _leave(self) -> None:
        """Let go of the engine, and leave in the outputs what shall be there when the notebook is opened again."""
        last = _stopped(self._look())
        with self._lock:
            if self._source is None:
                return
            self._source, self._last = None, last
        if self._forget_cells is not None:
            self._forget_cells()
        if self._panel is not None:
            self._panel.leave(last)
        self._panel = self._live = self._forget_cells = None


def _stopped(board: Board) -> Board:
    """Return the snapshot that a stopped dashboard leaves; the engine may go on."""
    facts = board.facts
    if facts.ended:
        return board
    return replace(board, facts=replace(facts, state=f"{facts.state} when this stopped", ended=True))
