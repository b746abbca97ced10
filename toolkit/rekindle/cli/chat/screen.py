"""Output of a chat: answers on stdout, with reasoning and notes in a dim colour on a terminal."""

import os
import sys
from typing import Final

from rekindle.core.text.response import Part

DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"


class Screen:
    """Standard output and standard error.

    Args:
        quiet: whether to leave out notes on stderr.
    """

    def __init__(self, *, quiet: bool):
        self._quiet = quiet
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._last: Part | None = None

    def part(self, part: Part) -> None:
        """Print a part of an answer as it arrives; a part of another kind begins a paragraph."""
        if not part.text:
            return
        if self._last is not None and self._last.kind != part.kind:
            print("\n")
        self._last = part
        print(self._dim(part.text) if part.kind == "reasoning" else part.text, end="", flush=True)

    def end(self) -> None:
        """End the line of an answer."""
        if self._last is not None and not self._last.text.endswith("\n"):
            print()
        self._last = None
        sys.stdout.flush()

    def show(self, text: str) -> None:
        """Print the result of a command."""
        print(self._dim(text), flush=True)

    def note(self, text: str) -> None:
        """Write a line about the chat to stderr."""
        if not self._quiet:
            sys.stdout.flush()
            print(self._dim(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self._coloured else text
