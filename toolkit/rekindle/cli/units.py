"""Sizes, times and tables on the command line."""

import math
import re
import shutil
import sys
import textwrap
from argparse import ArgumentTypeError
from collections.abc import Sequence

from rekindle.core.words import bytes_in


def parse_size(text: str) -> int:
    """Return a size in bytes, as `bytes_in` reads it.

    Raises:
        ArgumentTypeError: the text is not a size.
    """
    size = bytes_in(text)
    if size is None:
        raise ArgumentTypeError(f"expected a size such as 500M, 2G or 1.5GiB, got {text!r}")
    return size


def columns(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return rows of equally many cells as aligned lines.

    On a terminal too narrow for a line, each row is its first cell and, indented below, the others.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if max(map(len, lines), default=0) <= terminal_columns():
        return lines
    return [
        line
        for first, *rest in rows
        for line in (indent + first, *broken("  ".join(filter(None, rest)), indent + "  "))
    ]


def broken(text: str, indent: str, first: str | None = None) -> list[str]:
    """Return a text in lines for the terminal, broken between words; `first` is before the first line."""
    first, width = indent if first is None else first, terminal_columns()
    if len(first) + len(text) <= width:
        return [first + text]
    text = re.sub(r"(?<=\d) (?=[kMGT]?i?B\b)", "\xa0", text)  # a size and its unit stay together
    lines = textwrap.wrap(
        text, int(width), initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return [line.replace("\xa0", " ") for line in lines]


def terminal_columns() -> float:
    """Return the width of the terminal; infinity for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
