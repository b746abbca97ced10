"""Outputs of notebook cells. Any thread can change an output, even after the end of its cell."""

import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from functools import partial
from textwrap import TextWrapper
from typing import Any
from uuid import uuid4

from rekindle import markup
from rekindle.core.concurrency.threads import soon
from rekindle.notebook import marimo_cell

VIEW = "application/vnd.jupyter.widget-view+json"
"""The MIME type of a widget view."""
EMPTY = {"text/plain": "", "text/html": ""}
"""The content of a cleared output; outputs cannot be removed."""


def kernel() -> Any:
    """Return the Jupyter kernel of this process; None in terminal IPython and in scripts."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else getattr(ipython.get_ipython(), "kernel", None)


def in_notebook() -> bool:
    """Return True in a kernel of Jupyter and in a cell of marimo: their outputs are HTML and can be changed."""
    return kernel() is not None or marimo_cell.context() is not None


def has_reader() -> bool:
    """Return True in a notebook, and with a terminal for stderr; False where stderr is a log."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def tell(value: Any) -> None:
    """Display an object in the output of the running cell; outside notebooks, write it to stderr as text."""
    if kernel() is not None:
        from IPython.display import display

        display(value)  # type: ignore[no-untyped-call]
    elif in_notebook():
        CellOutput().draw(value._repr_mimebundle_())
    else:
        _write(str(value))


def note(line: str) -> None:
    """Write a dim line into the output of the running cell; outside notebooks, write it to stderr."""
    if in_notebook():
        CellOutput().draw(markup.bundle(line, markup.note(line)))
    else:
        _write(line)


def _write(text: str) -> None:
    """Write lines to stderr, on a terminal broken between words."""
    if sys.stderr is None:
        return
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        wrapper = TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrapper.fill(line) if len(line) > columns else line for line in text.split("\n"))
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def handles_clicks_while_awaiting(kernel: Any) -> bool:
    """Return True if widgets receive messages of the front end while a cell awaits.

    They do since ipykernel 7 if the cell awaits in asyncio: on subshells of the front end, or since 7.4 on the event
    loop of the cell. In earlier versions, the messages arrive only after the end of the cell.
    """
    return getattr(kernel, "shell_channel_thread", None) is not None


def thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread that can draw, not yet started. Call this in the cell that starts it."""
    if marimo_cell.context() is not None:
        return marimo_cell.thread(run, name)
    return threading.Thread(target=partial(_context_of_threads().run, run), name=name, daemon=True)


def draw_soon(run: Callable[[], object], name: str) -> None:
    """Draw on a new thread, and return at once. Call this in the cell of the drawing."""
    if marimo_cell.context() is not None:
        marimo_cell.thread(run, name).start()
    else:
        soon(partial(_context_of_threads().run, run), name)


def _context_of_threads() -> Context:
    """Return the context for a drawing thread.

    In an empty context, each drawing belongs to the cell running at the time of the drawing; in a tool like nbconvert,
    only the running cell has output. But ipykernel 7.0 finds the cell only in a copy of the cell's context.
    """
    ipykernel = sys.modules.get("ipykernel")
    return copy_context() if ipykernel and ipykernel.version_info[:2] == (7, 0) else Context()


def after_cells(draw: Callable[[], None]) -> Callable[[], None]:
    """Register a function to draw at the end of each cell, so that a notebook saved then has the drawing.

    Returns:
        The function to unregister `draw`; call it once.
    """
    shell = getattr(kernel(), "shell", None)
    if shell is None:
        return lambda: None

    def after_cell(_: object) -> None:
        draw()

    shell.events.register("post_run_cell", after_cell)
    return lambda: shell.events.unregister("post_run_cell", after_cell)


def widget_bundle(widget: Any, words: str) -> dict[str, object]:
    """Return the content of a widget by MIME type, with words for front ends that cannot show it."""
    return {**markup.bundle(words, markup.note(words)), VIEW: widget.get_view_spec()}


class CellOutput:
    """An output of the cell running at its first drawing. Only one thread at a time may draw."""

    def __init__(self) -> None:
        self._display_id = uuid4().hex
        self._of_marimo = None if marimo_cell.context() is None else marimo_cell.MarimoOutput()
        self._content: Mapping[str, object] | None = None

    def draw(self, bundle: Mapping[str, object]) -> None:
        """Display content by MIME type. Unchanged content is not sent again."""
        if bundle == self._content:
            return
        if self._of_marimo is not None:
            self._of_marimo.draw(str(bundle.get("text/html", markup.note(str(bundle["text/plain"])))))
        else:
            from IPython.display import display

            update = self._content is not None
            display(bundle, raw=True, display_id=self._display_id, update=update)  # type: ignore[no-untyped-call]
        self._content = bundle


class StopButton:
    """An output with a stop button, displayed until `close`.

    Args:
        stop: the function to call on a click, on any thread.
        otherwise: the text for a display without the button, on how to stop.
        button: False for no button, if the kernel could not handle a click.
    """

    def __init__(self, stop: Callable[[], None], otherwise: str, *, button: bool):
        self._button = _button(stop) if button else None
        words = markup.bundle(otherwise, markup.note(otherwise))
        self._output = CellOutput()
        self._output.draw(words if self._button is None else widget_bundle(self._button, otherwise))

    def close(self) -> None:
        """Remove the button, so that saved notebooks have no dead buttons."""
        self._output.draw(EMPTY)
        if self._button is not None:
            for widget in (self._button, self._button.layout, self._button.style):
                widget.close()


def _button(stop: Callable[[], None]) -> Any:
    """Return a button; None if widgets are unavailable for any reason."""
    try:
        from ipywidgets import Button

        button = Button(description="Cancel", icon="stop")
        button.on_click(lambda _: stop())
    except Exception:
        return None
    return button
