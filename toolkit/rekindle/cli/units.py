"""Sizes and times as people write and read them on the command line."""

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from rekindle.markup import counted

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?(?:([kmgt]i?)?b?)", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgt"


def parse_size(text: str) -> int:
    """Bytes: "500M" and "500 MB" are 500 million of them, "1.5GiB" is 1.5 times 2**30, and "0" is none.

    Raises:
        ArgumentTypeError: it is something else.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ArgumentTypeError(f"expected a size such as 500M, 2G or 1.5GiB, got {text!r}")
    number, unit = found[1], (found[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    power = 1 + _POWERS.index(unit[0]) if unit else 0
    return int(Fraction(number) * base**power)


def size_text(count: int) -> str:
    """With three digits, in decimal units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{count} B"


def ago(seconds: float) -> str:
    """How long ago something was, in its largest unit."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "less than a minute ago"


def columns(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Rows of equally many cells as lines, aligned."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
