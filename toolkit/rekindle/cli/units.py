"""Sizes, times and tables on the command line."""

from argparse import ArgumentTypeError
from collections.abc import Sequence

from rekindle.core.words import bytes_in, quantity


def parse_size(text: str) -> int:
    """Return a size in bytes, as `bytes_in` reads it.

    Raises:
        ArgumentTypeError: the text is not a size.
    """
    size = bytes_in(text)
    if size is None:
        raise ArgumentTypeError(f"expected a size such as 500M, 2G or 1.5GiB, got {text!r}")
    return size


def ago(seconds: float) -> str:
    """Return an age as text, in its largest unit."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{quantity(int(seconds // length), unit)} ago"
    return "less than a minute ago"


def columns(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return rows as aligned lines; all rows have the same number of cells."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
