"""The file of a map: a line of JSON for each answer, with which a later call goes on."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import Any, BinaryIO

from rekindle.client.batches.run import Outcome
from rekindle.core.errors import InvalidData, InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.request.constraint import Constraint
from rekindle.core.request.params import SamplingParams
from rekindle.core.store.entries import CAN_LOCK
from rekindle.mapping.items import Item
from rekindle.results.generation import Generation
from rekindle.results.parsing import parse

BEGINNING = b'{"place": '
"""The beginning of each line."""
LONGEST_VALUE = 120
"""How many characters of a keyword's value are written; a digest stands for a longer one."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The latest line of a place.

    Attributes:
        at: its first byte.
        digest: that of the prompt; None for an item that had none.
        answered: whether it has a generation.
    """

    at: int
    digest: str | None
    answered: bool


class AnswerFile:
    """A file of JSON lines that answers are appended to. A kill at any byte loses at most the line being written.

    Args:
        path: where it is, or will be.
        keywords: what shapes the answers, from `shaping`.
        constraint: what the answers are held to, which says what they mean.
    """

    def __init__(self, path: str | os.PathLike[str], keywords: Mapping[str, Any], constraint: Constraint | None):
        self._path, self._keywords, self._constraint = os.fspath(path), keywords, constraint
        self._lines: dict[int, _Line] = {}
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Read what an earlier call has written, and drop a last line that was cut.

        Raises:
            InvalidRequest: the answers in it were made with other keywords, or another map writes it now.
            InvalidData: there is something else in it. Nothing of it was changed.
            OSError: it cannot be read or written.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            self._lock(file)
            with open(self._path, "rb") as reader:
                end = self._read(reader)
            file.truncate(end)
            file.seek(end)
        except BaseException:
            file.close()
            raise
        self._file = file

    def answer(self, item: Item) -> Generation | None:
        """Return the answer to an item, if the file has one; those that failed are asked again.

        Raises:
            InvalidRequest: the file has an answer in this place to another prompt.
            InvalidData: what the file has there is no generation.
        """
        line = self._lines.get(item.place)
        if line is None:
            return None
        if line.digest is not None and line.digest != item.digest:
            before = self._at(line)["prompt"]
            raise InvalidRequest(
                f"{self._path} has, in place {item.place}, the answer to another prompt: {preview(before)}, and the "
                f"item there is {preview(item.asked)} now; give the same items in the same order, or another path"
            )
        if not line.answered:
            return None
        generation = Generation.from_dict(self._at(line)["generation"])
        if self._constraint is None:
            return generation
        value, why = parse(self._constraint, generation.text, generation.finish_reason, generation.stopped_by)
        return replace(generation, parsed=value, unparsed=why)

    def add(self, item: Item, outcome: Outcome) -> None:
        """Append what came of an item.

        Raises:
            OSError: it cannot be written.
        """
        assert self._file is not None, "a file is open while answers come"
        line = {
            "place": item.place,
            "prompt": item.asked,
            "digest": item.digest,
            "keywords": self._keywords,
            "generation": outcome.to_dict() if isinstance(outcome, Generation) else None,
            "error": None if isinstance(outcome, Generation) else f"{type(outcome).__name__}: {outcome}",
        }
        left = memoryview(f"{json.dumps(line)}\n".encode())
        while left:
            left = left[self._file.write(left) :]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lock(self, file: BinaryIO) -> None:
        if not CAN_LOCK:
            return
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(
                f"another map writes {self._path} now; wait for its end, or give another path"
            ) from None
        except OSError:  # this file system locks nothing
            return

    def _read(self, reader: BinaryIO) -> int:
        """Take note of each line, and return the end of the last whole one."""
        at = 0
        for number, line in enumerate(reader, 1):
            if not line.endswith(b"\n"):
                if not (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
                    raise self._strange(number)
                break
            self._take(number, at, line)
            at += len(line)
        return at

    def _take(self, number: int, at: int, line: bytes) -> None:
        try:
            known = json.loads(line)
            place, digest, keywords = known["place"], known["digest"], known["keywords"]
            answered = known["generation"] is not None
        except (ValueError, TypeError, KeyError) as error:
            raise self._strange(number) from error
        if type(place) is not int or not isinstance(keywords, dict):
            raise self._strange(number)
        if different := list(_differences(keywords, self._keywords)):
            raise InvalidRequest(
                f"the answers in {self._path} were made with {', '.join(before for before, _ in different)}, and this "
                f"call has {', '.join(now for _, now in different)}; give the same, or another path"
            )
        self._lines[place] = _Line(at, digest, answered)

    def _strange(self, number: int) -> InvalidData:
        return InvalidData(
            f"line {number} of {self._path} was not written by map(), so nothing is appended; give another path"
        )

    def _at(self, line: _Line) -> dict[str, Any]:
        with open(self._path, "rb") as file:
            file.seek(line.at)
            known: dict[str, Any] = json.loads(file.readline())
        return known


def shaping(model: str, params: SamplingParams, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shapes the answers of a call, by name, as JSON holds it.

    Args:
        model: where the model was opened; the last part of it is kept, since a directory may move.
        params: those that differ from the defaults are kept.
        options: other keywords of the call that shape its prompts.
    """
    said: dict[str, Any] = {"model": PurePath(model).name}
    for each in fields(params):
        value = getattr(params, each.name)
        if value != each.default and each.name not in ("cache_salt", "priority"):
            said[each.name] = _plain(value)
    return said | {name: _plain(json.dumps(value, default=str)) for name, value in options.items() if value}


def _plain(value: Any) -> Any:
    """Return a value as it is, if it is a number, and else a text of it, which is never long."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Constraint):
        text = value.text
    else:
        text = value if isinstance(value, str) else repr(sorted(value) if isinstance(value, frozenset) else list(value))
    return text if len(text) <= LONGEST_VALUE else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each keyword that is not alike, as it was and as it is."""
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            yield _said(name, before), _said(name, now)


def _said(name: str, keywords: Mapping[str, Any]) -> str:
    return f"{name}={preview(keywords[name])}" if name in keywords else f"the default {name}"
