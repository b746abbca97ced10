"""Words for people: counts, times, shares and sizes, and texts on one line."""

import re
from fractions import Fraction
from typing import Final

# Control characters, characters that change the direction of text, lone surrogates, and what XML does not allow.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?(?:([kmgt]i?)?b?)", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgt"


def quantity(count: int, what: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 page" or "2,000 pages". `plural` is for nouns without a plural in s."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def seconds(count: float) -> str:
    """Format a time in milliseconds or seconds."""
    if count < 1:
        return f"{1e3 * count:.{0 if count >= 0.01 else 1}f} ms"
    return f"{count:.{2 if count < 100 else 0}f} s"


def ago(count: float) -> str:
    """Return an age in seconds as text, in its largest unit."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if count >= length:
            return f"{quantity(int(count // length), unit)} ago"
    return "less than a minute ago"


def percent(share: float) -> str:
    """Format a share in percent, with enough digits to differ from 0."""
    return f"{share:.1%}" if share >= 0.001 or share == 0 else f"{100 * share:.1e}%"


def bytes_in(text: str) -> int | None:
    """Return a size in bytes, or None for another text: "500M" is 500 million, "1.5 GiB" is 1.5 times 2**30."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = match[1], (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return int(Fraction(number) * base ** (1 + _POWERS.index(unit[0]) if unit else 0))


def size_text(count: int) -> str:
    """Format a number of bytes with three digits and a decimal unit, such as "1.23 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{count} B"


def spelled(text: str) -> str:
    """Return text with invisible characters spelled out, not escaped."""
    return _UNSEEN.sub(_spelled, text)


def one_line(text: str, longest: int) -> str:
    """Return the beginning of a text on one line, not escaped."""
    line = text[: longest + 1].replace("\n", "↵").replace("\t", "→")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
