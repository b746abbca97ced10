"""Validation of values from callers, and their conversion to Python's own types.

Every check converts: a numpy int8, for example, would overflow when added to a length.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any

from rekindle.core.errors import InvalidRequest

MOST_TEXTS = 256
"""Most texts in one parameter; each one is searched for at every token."""
LONGEST_TEXT = 4096
"""Most characters of one text."""
MOST_EQUAL_TEXTS = 4096
"""Most texts in one parameter before equal ones are left out."""
MOST_WORDS = 1 << 16
"""Most words in one parameter; each is tokenized twice."""
MOST_IDS = 1 << 19
"""Most token ids in a set; no vocabulary has as many."""
MOST_PROMPT_IDS = 1 << 23
"""Most token ids of a prompt; any context has room for fewer."""
MOST_LONG_TEXTS = 10**6
"""Most prompts, or parts of prompts, in one call."""
LONGEST_LONG_TEXT = 10**7
"""Most characters of one prompt; any context has room for far fewer."""
_LONGEST_PIECE = 512
"""Most characters of a text in a message."""
_AT_ONCE = 1 << 16
"""Token ids checked at a time."""


def preview(value: object, length: int = 80) -> str:
    """Return the start of a value's repr for a message, without a walk through a large value."""
    start = ""
    try:
        for piece in _pieces(value):
            start += piece
            if len(start) >= length:
                break
    except Exception:  # some values, such as very long integers, have no repr
        return f"a value of type {type(value).__name__} that cannot be shown"
    return start[:length]


def _pieces(value: object) -> Iterator[str]:
    """Yield the repr of a value in pieces."""
    if type(value) is str:
        yield repr(value[:_LONGEST_PIECE])
    elif type(value) is list:
        yield "["
        for place, each in enumerate(value):
            yield ", " if place else ""
            yield from _pieces(each)
        yield "]"
    elif type(value) is dict:
        yield "{"
        for place, (key, each) in enumerate(value.items()):
            yield ", " if place else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(each)
        yield "}"
    else:
        yield repr(value)


def token_ids(name: str, ids: Any) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple.

    Raises:
        InvalidRequest: the value is no sequence of integers, or has more than `MOST_PROMPT_IDS`.
    """
    check_size(name, ids, MOST_PROMPT_IDS)
    if isinstance(ids, list | tuple) and all(set(map(type, part)) <= {int} for part in _parts(ids)):
        return tuple(ids)
    try:
        tokens = [None] if isinstance(ids, str | bytes) else [_as_integer(token) for token in ids]
    except TypeError:
        tokens = [None]
    integers = tuple(token for token in tokens if token is not None)
    if len(integers) < len(tokens):
        raise InvalidRequest(f"{name} must be a sequence of integers, got {preview(ids)}")
    return integers


def some_token_ids(name: str, value: Any) -> frozenset[int]:
    """Return a non-empty sequence of integers as a set."""
    ids = _id_set(name, value)
    if not ids:
        raise InvalidRequest(f"{name} is empty; give at least one token id, or None to allow all")
    return ids


def one_or_more_token_ids(name: str, value: Any) -> frozenset[int]:
    """Return an integer, or a sequence of integers, as a set."""
    one = _as_integer(value)
    return _id_set(name, value) if one is None else frozenset((one,))


def _id_set(name: str, value: Any) -> frozenset[int]:
    check_size(name, value, MOST_IDS)
    return frozenset(token_ids(name, value))


def check_size(name: str, value: Any, most: int) -> None:
    """Raise InvalidRequest if a collection has more than `most` values, before any of them is looked at."""
    try:
        size = len(value)
    except TypeError:  # an iterator, a number, or an array without dimensions
        return
    if size > most:
        raise InvalidRequest(f"{name} may have at most {most} values, got {size}")


def in_vocabulary(name: str, ids: Collection[int], vocab_size: int) -> None:
    """Raise InvalidRequest if an id is outside the vocabulary."""
    for part in _parts(ids):
        if min(part) < 0 or max(part) >= vocab_size:
            outside = next(token for token in part if not 0 <= token < vocab_size)
            raise InvalidRequest(f"{name} must be from 0 to {vocab_size - 1}, got {preview(outside)}")


def _parts(ids: Collection[Any]) -> Iterator[Sequence[Any]]:
    """Yield a collection in parts for functions in C, which are fast and let no other thread run."""
    rest = iter(ids)
    while part := tuple(islice(rest, _AT_ONCE)):
        yield part


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Return an integer from `low` to `high`."""
    number = _as_integer(value)
    if number is None or not low <= number <= high:
        raise InvalidRequest(f"{name} must be an integer from {low} to {high}, got {preview(value)}")
    return number


def number(name: str, value: Any, low: float, high: float) -> float:
    """Return a finite number from `low` to `high`."""
    checked = _as_number(value)
    if not low <= checked <= high:
        raise InvalidRequest(
            f"{name} must be a finite number of at least {low:g} and at most {high:g}, got {preview(value)}"
        )
    return checked


def numbers(name: str, value: Any, low: float, high: float, most: int) -> tuple[float, ...]:
    """Return a sequence of at most `most` finite numbers, each from `low` to `high`."""
    if not is_sequence(value) or len(value) > most:
        raise InvalidRequest(f"{name} must be a sequence of at most {most} numbers, got {preview(value)}")
    return tuple(number(f"each of {name}", each, low, high) for each in value)


def boolean(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, got {preview(value)}")
    return value


def one_of(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    """Return one of the allowed texts, flags and None."""
    for each in allowed:
        if isinstance(value, type(each)) and value == each:
            return each
    *first, last = (f'"{each}"' if isinstance(each, str) else str(each) for each in allowed)
    raise InvalidRequest(f"{name} must be {', '.join(first)} or {last}, got {preview(value)}")


def text(name: str, value: Any, longest: int = LONGEST_TEXT) -> str:
    """Return a str with at most `longest` characters, encodable as UTF-8."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a str, got {preview(value)}")
    if len(value) > longest:
        raise InvalidRequest(f"{name} must have at most {longest} characters, got {len(value)}: {preview(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} must be text that UTF-8 can encode, got {preview(value)}") from None
    return str(value)


def texts(name: str, value: Any, most: int = MOST_TEXTS, longest: int = LONGEST_TEXT) -> tuple[str, ...]:
    """Return one text, or a sequence of at most `most` texts, as a tuple; no text may be empty."""
    items = (value,) if isinstance(value, str) else tuple(value) if is_sequence(value) else (None,)
    for place, each in enumerate(items):
        if not isinstance(each, str) or not each:
            at = f", which has {preview(each)} in place {place}" if is_sequence(value) else ""
            raise InvalidRequest(
                f"{name} must be a text or a sequence of texts, none of them empty, got {preview(value)}{at}"
            )
    if len(items) > most:
        raise InvalidRequest(f"{name} may be at most {most} texts, got {len(items)}")
    return tuple(text(f"each of {name}", each, longest) for each in items)


def distinct_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text, or a sequence of texts, as a tuple without equal texts, which do not count."""
    check_size(name, () if isinstance(value, str) else value, MOST_EQUAL_TEXTS)
    if is_sequence(value) and all(isinstance(each, str) for each in value):
        value = list(dict.fromkeys(value))
    return texts(name, value)


def long_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return prompts, or parts of prompts: many long texts, bounded later by the context."""
    return texts(name, value, MOST_LONG_TEXTS, LONGEST_LONG_TEXT)


def words(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return a sequence of texts or token id sequences; no item may be empty."""
    if not is_sequence(value):
        raise InvalidRequest(f"{name} must be a sequence of texts or of token id sequences, got {preview(value)}")
    check_size(name, value, MOST_WORDS)
    each = f"each of {name}"
    checked = tuple(text(each, word) if isinstance(word, str) else token_ids(each, word) for word in value)
    if not all(word.strip() if isinstance(word, str) else word for word in checked):
        raise InvalidRequest(f"{name} must have no empty word, got {preview(value)}")
    return checked


def bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return a mapping of token ids to numbers from -1e6 to 1e6, or minus infinity, as pairs.

    Token ids may be strings of digits, as in the keys of a JSON object.
    """
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be a mapping of token ids to numbers, got {preview(value)}")
    check_size(name, value, MOST_IDS)
    tokens = token_ids(f"the keys of {name}", tuple(map(_from_json, value)))
    if len(set(tokens)) < len(tokens):
        raise InvalidRequest(f"{name} names a token twice, as an integer and as a string, got {preview(value)}")
    what = f"the values of {name}"
    return tuple((token, _one_bias(what, each)) for token, each in zip(tokens, value.values(), strict=True))


def count_or_none(name: str, value: Any, high: int) -> int | None:
    """Return a number of alternatives up to `high`, or -1 for all; None for None or False, and 0 for True."""
    if value is None or value is False:
        return None
    return 0 if value is True else integer(name, value, -1, high)


def unless_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return a check that accepts None in addition."""
    return lambda name, value: None if value is None else check(name, value)


def is_sequence(value: Any) -> bool:
    """Return True if a value is a sequence other than a text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _as_integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        return None


def _as_number(value: Any) -> float:
    """Return a real number as a float, and NaN, outside every range, for anything else."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.inf


def _from_json(key: Any) -> Any:
    """Return the integer of a string of digits, and any other key unchanged."""
    digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20
    return int(key) if digits else key


def _one_bias(name: str, value: Any) -> float:
    bans = isinstance(value, Real) and value == -math.inf
    return -math.inf if bans else number(name, value, -1e6, 1e6)
