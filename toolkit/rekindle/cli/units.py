"""Sizes, times and tables on the command line."""

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from rekindle.core.markup import quantity

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?(?:([kmgt]i?)?b?)", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgt"


def parse_size(text: str) -> int:
    """Return a size in bytes: "500M" and "500 MB" are 500 million, "1.5GiB" is 1.5 times 2**30.

    Raises:
        ArgumentTypeError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"expected a size such as 500M, 2G or 1.5GiB, got {text!r}")
    number, unit = match[1], (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    power = 1 + _POWERS.index(unit[0]) if unit else 0
    return int(Fraction(number) * base**power)


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
