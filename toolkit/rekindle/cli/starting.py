"""A word on the terminal while a command imports its libraries."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Final

PATIENCE_SECONDS: Final = 0.7
"""The time without a word."""
LINE: Final = "starting …"
ERASE: Final = "\r\x1b[K"


@contextmanager
def announced() -> Iterator[None]:
    """Show a line while a block takes long, if this process is a command on a terminal.

    The first start after an installation also compiles the sources of all libraries to bytecode, which takes seconds.
    """
    if not _on_terminal():
        yield
        return
    counts: list[int] = []
    timer = Timer(PATIENCE_SECONDS, lambda: counts.append(_write(LINE)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if counts:
            _write(ERASE)


def _on_terminal() -> bool:
    """Return True for `rekindle` and `python -m rekindle`, if progress may be shown on their terminal."""
    # The name of a module that is run is known only after the imports of its package.
    is_module = sys.argv[:1] == ["-m"] and "rekindle" in sys.orig_argv
    is_command = is_module or Path(sys.argv[0] if sys.argv else "").stem == "rekindle"
    return is_command and sys.stderr is not None and sys.stderr.isatty() and "--quiet" not in sys.orig_argv


def _write(text: str) -> int:
    count = sys.stderr.write(text)
    sys.stderr.flush()
    return count
