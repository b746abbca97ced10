"""Output of a chat: answers on stdout, with reasoning and notes in a dim colour on a terminal."""

import os
import sys
from typing import Final

from rekindle.cli.chat.wrapping import WordWrap, columns, wrap_for
from rekindle.core.words import spelled
from rekindle.formats.response import Part

DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"
ERASE: Final = "\r\x1b[K"
WAITING: Final = "…"
"""The sign of life before the first token."""


class Screen:
    """Standard output and standard error.

    On a terminal, text is broken between words, and answers have an empty line before and after them.

    Args:
        quiet: whether to leave out notes on stderr.

    Attributes:
        coloured: whether stdout shows colours.
    """

    def __init__(self, *, quiet: bool):
        self._quiet = quiet
        self._is_terminal = sys.stdout.isatty()
        self._moves = self._is_terminal and os.environ.get("TERM") != "dumb"
        self.coloured = self._moves and "NO_COLOR" not in os.environ
        self._words = WordWrap(columns)
        self._last: Part | None = None
        self._waits = False

    def wait(self) -> None:
        """Show a sign of life until the first part of an answer."""
        if self._is_terminal:
            print()
        if self._moves:
            print(self._dim(WAITING), end="", flush=True)
            self._waits = True

    def part(self, part: Part) -> None:
        """Print a part of an answer as it arrives; a part of another kind begins a paragraph."""
        if not part.text:
            return
        self._erase()
        if self._last is not None and self._last.kind != part.kind:
            self._write(self._rest(), self._last.kind)
            print("\n")
        self._last = part
        # A terminal would obey control characters, which a model may copy from a page or a tool's result.
        self._write(self._words.push(spelled(part.text)) if self._is_terminal else part.text, part.kind)

    def end(self) -> None:
        """End the line of an answer."""
        self._erase()
        if self._last is not None:
            self._write(self._rest(), self._last.kind)
            if not self._last.text.endswith("\n"):
                print()
            if self._is_terminal:
                print()
        self._last = None
        sys.stdout.flush()

    def show(self, text: str) -> None:
        """Print the result of a command."""
        print(self._dim(wrap_for(sys.stdout, text)), flush=True)

    def note(self, text: str) -> None:
        """Write a line about the chat to stderr."""
        if not self._quiet:
            sys.stdout.flush()
            lines = wrap_for(sys.stderr, text)
            print(self._dim(lines) if sys.stderr.isatty() else lines, file=sys.stderr, flush=True)

    def _write(self, text: str, kind: str) -> None:
        if text:
            print(self._dim(text) if kind == "reasoning" else text, end="", flush=True)

    def _rest(self) -> str:
        """Return the last word of a part, held back by the wrapping, and begin a new text."""
        words, self._words = self._words, WordWrap(columns)
        return words.finish() if self._is_terminal else ""

    def _erase(self) -> None:
        """Erase the sign of life."""
        if self._waits:
            print(ERASE, end="", flush=True)
            self._waits = False

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.coloured else text
