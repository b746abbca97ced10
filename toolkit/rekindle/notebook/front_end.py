"""The outputs of a notebook's cells, which any thread may change, also when their cell has ended."""

import sys
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any
from uuid import uuid4

VIEW = "application/vnd.jupyter.widget-view+json"
"""The MIME type of a widget."""
EMPTY = {"text/plain": "", "text/html": ""}
"""The content of an output that has nothing to show any more; an output cannot be taken back."""


def kernel() -> Any:
    """Return the Jupyter kernel that this process is; None in a terminal's IPython, and in a script."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else getattr(ipython.get_ipython(), "kernel", None)


def tell(shown: Any) -> None:
    """Show an object in the output of the cell that runs; elsewhere, write its repr where progress is written."""
    if kernel() is not None:
        from IPython.display import display

        display(shown)  # type: ignore[no-untyped-call]
    elif sys.stderr is not None:
        sys.stderr.write(f"{shown!r}\n")
        sys.stderr.flush()


def hears_clicks_while_a_cell_awaits(kernel: Any) -> bool:
    """Tell whether widgets get a front end's messages while a cell awaits, and not only when it has ended.

    They do from ipykernel 7 on, if the cell awaits in asyncio: on subshells, which the front end has to use, or, from
    7.4 on, on the loop that the cell runs on.
    """
    return getattr(kernel, "shell_channel_thread", None) is not None


def context_of_threads() -> Context:
    """Return the context for a thread that draws; called by the cell that starts the thread.

    In an empty context, a drawing belongs to the cell that runs at that time, which is the only one that a tool that
    executes notebooks listens to. But ipykernel 7.0 knows a cell only in the cell's own context.
    """
    ipykernel = sys.modules.get("ipykernel")
    return copy_context() if ipykernel and ipykernel.version_info[:2] == (7, 0) else Context()


def after_cells(draw: Callable[[], None]) -> Callable[[], None]:
    """Have a function called at the end of each cell, so that what it draws is in the notebook that is saved then.

    Returns:
        a function that ends this, to be called once.
    """
    shell = getattr(kernel(), "shell", None)
    if shell is None:
        return lambda: None

    def ended(_: object) -> None:
        draw()

    shell.events.register("post_run_cell", ended)
    return lambda: shell.events.unregister("post_run_cell", ended)


class CellOutput:
    """An output of the cell that runs when it is first drawn. One thread at a time may draw it."""

    def __init__(self) -> None:
        self._display_id = uuid4().hex
        self._drawn: Mapping[str, object] | None = None

    def draw(self, bundle: Mapping[str, object]) -> None:
        """Show this, by MIME type. Nothing is sent if the output shows it already."""
        if bundle != self._drawn:
            from IPython.display import display

            update = self._drawn is not None
            display(bundle, raw=True, display_id=self._display_id, update=update)  # type: ignore[no-untyped-call]
            self._drawn = bundle


class StopButton:
    """An output with a button, for as long as there is something to stop.

    Args:
        stop: called when the button is pressed, on any thread.
        otherwise: how else to stop; shown where there is no button.
        button: whether a click would be heard.
    """

    def __init__(self, stop: Callable[[], None], otherwise: str, *, button: bool):
        self._button = _button(stop) if button else None
        view = {} if self._button is None else {VIEW: self._button.get_view_spec()}
        self._output = CellOutput()
        self._output.draw({"text/plain": otherwise, **view})

    def close(self) -> None:
        """Take the button away, so that no notebook is saved with a button that does nothing."""
        self._output.draw(EMPTY)
        if self._button is not None:
            for widget in (self._button, self._button.layout, self._button.style):
                widget.close()


def _button(stop: Callable[[], None]) -> Any:
    """Return a button, or None where there can be none, for whatever reason."""
    try:
        from ipywidgets import Button

        button = Button(description="Cancel", icon="stop")
        button.on_click(lambda _: stop())
    except Exception:
        return None
    return button
