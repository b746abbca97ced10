"""Lines of a terminal: a growing text is broken between words instead of inside them."""

import re
import shutil
import sys
from collections.abc import Callable
from itertools import takewhile
from typing import Final, TextIO

from wcwidth import wcswidth, wcwidth

FENCES: Final = ("```", "~~~")
"""Marks around code. Its lines stay whole for copies."""

EMOJI: Final = "\U0001f000"
"""The first emoji. Emojis form sequences, and a line cannot end inside one."""

LIST_ITEM: Final = re.compile(r" *(?:(?:[-*+•]|\d{1,3}[.)]) +)?")
"""The part of a line before its text: spaces, and the mark of an item of a list."""

UNITS: Final = re.compile(r"(?<=\d) (?=(?:[kMG]?B|ms|s|min|h)\b)")
"""A space between a number and its unit, which stay on one line."""

JOINT: Final = "\xa0"
"""The space between them while a line is broken."""


class WordWrap:
    """Word wrap of a growing text, at the terminal's width at each moment.

    A word is returned once the next character ends it. Text in scripts without spaces, with wide characters, breaks
    between any two. The lines of an item of a list begin below its text.

    Args:
        columns: returns the width of the terminal.
    """

    def __init__(self, columns: Callable[[], int]):
        self._columns = columns
        self._line = ""  # the line of the text, to find fences
        self._is_code = False
        self._column = 0  # the cells in use on the line of the screen
        self._spaces = self._word = ""

    def push(self, text: str) -> str:
        """Add text; return the part of it up to its last word, with line breaks."""
        return "".join(map(self._push, text))

    def finish(self) -> str:
        """Return the last word of the text."""
        return self._take_word()

    def _push(self, character: str) -> str:
        if character == "\n":
            word = self._take_word()
            if self._line.lstrip().startswith(FENCES):
                self._is_code = not self._is_code
            self._line, self._spaces, self._column = "", "", 0
            return f"{word}\n"
        self._line += character
        if self._is_code:
            return character
        if character in " \t":
            word = self._take_word()
            self._spaces += character
            return word
        if wcwidth(character) == 2 and character < EMOJI:
            before = self._take_word()
            self._word = character
            return before
        self._word += character
        if len(self._word) < self._columns():
            return ""
        part = self._take_word()  # of a word without an end, whose lines the terminal breaks
        self._column = 0
        return part

    def _take_word(self) -> str:
        """Return the spaces and the word before the cursor, with a line break in place of spaces at the line's end."""
        spaces, word = self._spaces, self._word
        if not word:
            return ""
        self._spaces = self._word = ""
        columns, width = self._columns(), _width(word)
        if self._column and self._column + len(spaces) + width > columns:
            indent = self._indent(columns)
            spaces = f"\n{' ' * indent}"
            self._column = indent
        else:
            self._column += len(spaces)
        self._column = self._column + width if self._column + width <= columns else width % columns
        return f"{spaces}{word}"

    def _indent(self, columns: int) -> int:
        """Return the number of cells before the text of a line, or 0 if they are more than half of the screen's."""
        item = LIST_ITEM.match(self._line)
        width = _width(item[0]) if item else 0
        return width if width <= columns // 2 else 0


def wrap(text: str, columns: int) -> str:
    """Return a text with its lines broken between words; continued lines are indented as the columns of a table.

    The second column of a line begins after its first two spaces in a row.
    """
    return "\n".join(_wrap_line(line, columns) for line in text.split("\n"))


def columns() -> int:
    """Return the width of the terminal."""
    return max(10, shutil.get_terminal_size().columns)


def wrap_for(stream: TextIO, text: str) -> str:
    """Return a text with its lines broken between words, for a stream that is a terminal."""
    return wrap(text, columns()) if stream.isatty() else text


def print_note(text: str) -> None:
    """Print a text to stderr, on a terminal with its lines broken between words."""
    if sys.stderr is not None:
        print(wrap_for(sys.stderr, text), file=sys.stderr, flush=True)


def _wrap_line(line: str, columns: int) -> str:
    """Return a line, broken between words, with an indentation below its last column."""
    if _width(line) <= columns:
        return line
    first, gap, rest = line.partition("  ")
    spaces = len(gap) + len("".join(takewhile(str.isspace, rest)))
    indent = len(first) + spaces if first.strip() and gap and len(first) + spaces <= columns // 2 else 0
    words = WordWrap(lambda: columns - indent)
    text = line[indent:] if indent else line
    broken = (words.push(UNITS.sub(JOINT, text)) + words.finish()).replace(JOINT, " ")
    return line[:indent] + broken.replace("\n", f"\n{' ' * indent}")


def _width(text: str) -> int:
    """Return the number of cells of a text; control characters count as none."""
    return max(0, wcswidth(text)) or sum(max(0, wcwidth(each)) for each in text)
