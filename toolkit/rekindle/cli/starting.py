"""A line during the import of Rekindle's libraries: in a terminal for commands and IPython, in a notebook's cell."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any, Final
from uuid import uuid4

from rekindle.core.concurrency.collector import collector_paused

PATIENCE_SECONDS: Final = 0.7
"""The time without a word in a terminal."""
CELL_PATIENCE_SECONDS: Final = 2.5
"""The time without a word in a notebook, longer because the removed line leaves an empty output."""
LINE: Final = "starting …"
ERASE: Final = "\r\x1b[K"
INTERRUPTED: Final = 128 + 2
"""The exit status of a command after Ctrl-C."""

Draw = Callable[[str], None]
"""Show a text in place of the former text; the empty text removes the line."""


def deferred(module: str, name: str) -> Callable[[Any], int]:
    """Return a function that imports a module at its first call, and calls a function of the module.

    Args:
        module: the full name of the module.
        name: the name of the function.
    """

    def run(arguments: Any) -> int:
        function: Callable[[Any], int] = getattr(imported(module), name)
        return function(arguments)

    return run


def imported(module: str) -> Any:
    """Return a module by its full name; a line appears if its first import takes long."""
    if module in sys.modules:
        return import_module(module)  # which waits for an import in another thread
    with announced(), collector_paused():
        return import_module(module)


@contextmanager
def announced() -> Iterator[None]:
    """Show a line during a long block: on a terminal or in a notebook.

    The first import after an installation also compiles the sources of all libraries to bytecode, which takes seconds.
    """
    draw = _screen()
    if draw is None:
        yield
        return
    draws: list[bool] = []
    # The line belongs to the cell that imports, which ipykernel 7.0 finds in a copy of the cell's context alone.
    patience = PATIENCE_SECONDS if draw is _write else CELL_PATIENCE_SECONDS
    timer = Timer(patience, copy_context().run, [lambda: draws.append(draw(LINE) is None)])
    timer.daemon = True
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if is_command():
            raise SystemExit(INTERRUPTED) from None  # without the traceback of an import
        raise
    finally:
        timer.cancel()
        timer.join()
        if draws:
            draw("")


def _screen() -> Draw | None:
    """Return the function for a line; None in scripts and servers."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return _cell()
    on_terminal = sys.stderr is not None and sys.stderr.isatty() and "--quiet" not in sys.orig_argv
    return _write if on_terminal and (shell is not None or is_command()) else None


def is_command() -> bool:
    """Return True for `rekindle` and `python -m rekindle`."""
    # The name of a module that is run is known only after the imports of its package.
    is_module = sys.argv[:1] == ["-m"] and "rekindle" in sys.orig_argv
    return is_module or Path(sys.argv[0] if sys.argv else "").stem == "rekindle"


def _write(text: str) -> None:
    sys.stderr.write(text or ERASE)
    sys.stderr.flush()


def _cell() -> Draw:
    """Return the function for a line in the output of the running cell."""
    display_id = uuid4().hex

    def draw(text: str) -> None:
        from IPython.display import display

        content: dict[str, Any] = {"text/plain": text, "text/html": text and f"<i>{text}</i>"}
        display(content, raw=True, display_id=display_id, update=not text)  # type: ignore[no-untyped-call]

    return draw
