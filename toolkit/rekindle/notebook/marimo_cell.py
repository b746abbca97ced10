"""Cells of marimo: their outputs, their threads, and objects that live as long as they do.

marimo shows no widgets of ipywidgets and no display messages of IPython. Its outputs are changed by `mo.output`, on the
thread of the cell and on threads of `mo.Thread`.
"""

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any


def context() -> Any:
    """Return marimo's context of the running cell; None outside of a notebook of marimo."""
    if "marimo" not in sys.modules:
        return None
    current = import_module("marimo._runtime.context").safe_get_context()
    is_notebook = type(current).__name__ == "KernelRuntimeContext"  # not a notebook that runs as a script
    return current if is_notebook and current.execution_context is not None else None


class MarimoOutput:
    """One of the outputs of the cell running at its first drawing."""

    def __init__(self) -> None:
        self._place: int | None = None

    def draw(self, html: str) -> None:
        """Display HTML, in place of the former. Nothing is drawn for a cell that has run again meanwhile."""
        if (cell := context()) is None or has_run_again():
            return
        if self._place is None:
            self._place = len(cell.execution_context.output)
        marimo: Any = sys.modules["marimo"]
        marimo.output.replace_at_index(marimo.Html(html), self._place)


def has_run_again() -> bool:
    """Return True on a thread of a cell with a later run, or of a deleted cell."""
    return bool(getattr(threading.current_thread(), "should_exit", False))


def html(text: str) -> Any:
    """Return HTML as an object for marimo to display."""
    marimo: Any = sys.modules["marimo"]
    return marimo.Html(text)


def thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread that can change the outputs of the running cell."""
    marimo: Any = sys.modules["marimo"]
    drawer: threading.Thread = marimo.Thread(target=run, name=name, daemon=True)
    return drawer


def run_id() -> str | None:
    """Return the name of the current run of cells; None outside of a notebook of marimo."""
    if context() is None:
        return None
    run: str | None = import_module("marimo._messaging.context").RUN_ID_CTX.get(None)
    return run


class Keeper:
    """A holder of an object that the next run of the running cell may use again.

    marimo deletes the variables of a cell before the cell runs again. The object is released with the cell, and at the
    run after one without use for it.
    """

    def __init__(self, value: object):
        self.value: object | None = value
        self._is_used = True
        context().cell_lifecycle_registry.add(self)

    def use(self) -> Any:
        """Return the object, for another run."""
        self._is_used = True
        return self.value

    def create(self, context: object) -> None:
        """Do nothing: marimo calls this for each item of a cell."""

    def dispose(self, context: object, deletion: bool) -> bool:
        """Release the object if it has no use; marimo calls this before each run and at the deletion of the cell.

        Returns:
            True if it was released.
        """
        if deletion or not self._is_used:
            self.value = None
        self._is_used = False
        return self.value is None


def keepers() -> list[Keeper]:
    """Return the holders of former runs of the running cell; none outside of a notebook of marimo."""
    if (cell := context()) is None:
        return []
    items = cell.cell_lifecycle_registry.registry.get(cell.execution_context.cell_id, ())
    return [item for item in items if isinstance(item, Keeper)]
