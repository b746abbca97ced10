"""File of a map or of a batch: one JSON line per answer, so that a later call can continue."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

from rekindle.core.errors import InvalidData, InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.store.entries import CAN_LOCK
from rekindle.mapping.entries import Entry
from rekindle.mapping.shaping import MODEL
from rekindle.results.answer_table import PromptLabel

BEGINNING = b'{"place": '
"""First bytes of each line."""
ADAPTER = "adapter"
"""Entry of a line with the name of the adapter and the digest of its content."""
CONTENT = "weights"
"""Entry of a line with the digest of the weights, missing in files of earlier versions."""


@dataclass(frozen=True, slots=True)
class FileWords:
    """Words about a file in errors.

    Attributes:
        writer: the operation of the file.
        made_by: its form in a sentence about a foreign line.
        call: the owner of the options.
        item: the owner of an answer.
        place: the kind of its number.
        first: the number of the first place.
        prompt: the content of an item.
    """

    writer: str = "map"
    made_by: str = "map()"
    call: str = "call"
    item: str = "item"
    place: str = "index"
    first: int = 0
    prompt: str = "prompt"


MAP_WORDS: Final = FileWords()


class Question(Protocol):
    """Owner of an answer: an item of a map, or a line of a batch."""

    @property
    def place(self) -> int:
        """Index, from 0."""

    @property
    def label(self) -> PromptLabel:
        """Label in errors and in the lines of the file."""

    @property
    def digest(self) -> str | None:
        """Digest of the content, the same in all processes; None without content."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Position and kind of the latest line of an item.

    Attributes:
        at: the offset of the line in bytes.
        digest: the digest of the prompt; None for an item without a prompt.
        is_answer: whether the line has a result.
    """

    at: int
    digest: str | None
    is_answer: bool


class AnswerFile:
    """File of JSON lines with the answers of a map. A crash at any byte loses at most the line being written.

    Args:
        path: the path of the file, which may not exist yet.
        keywords: the options that shape the answers, from `shaping_options`.
        entry: the entry of a line with the result.
        words: the words about the file in errors.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keywords: Mapping[str, Any],
        entry: Entry,
        words: FileWords = MAP_WORDS,
    ):
        self._path, self._keywords, self._entry, self._words = os.fspath(path), dict(keywords), entry, words
        self._lines: dict[int, _Line] = {}
        self._file: BinaryIO | None = None

    def open(self, session: Mapping[str, str]) -> None:
        """Read the answers of earlier calls, and drop an incomplete last line.

        Args:
            session: the content of the session that shapes the answers, by name, with the weights in use.

        Raises:
            InvalidRequest: the answers were generated with other options or by another session, or another map is
                writing the file.
            InvalidData: the file has other content; it is unchanged.
            OSError: the file cannot be read or written.
        """
        self._keywords = {**self._keywords, **session}
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{self._path} must be a file on disk, whose answers are read again; it is none")
            self._lock(file)
            with open(self._path, "rb") as reader:
                end = self._read(reader)
            file.truncate(end)
            file.seek(end)
        except BaseException:
            file.close()
            raise
        self._file = file

    def answer(self, item: Question) -> Any:
        """Return the stored answer of an item; None for an item without a stored answer, or with a stored error.

        Raises:
            InvalidRequest: the stored answer at this index belongs to another prompt.
            InvalidData: the stored answer is invalid.
        """
        line = self._lines.get(item.place)
        if line is None:
            return None
        if line.digest is not None and line.digest != item.digest:
            before, words = self._record(line)["prompt"], self._words
            raise InvalidRequest(
                f"{self._path} has, at {words.place} {item.place + words.first}, the answer to another {words.prompt}: "
                f"{preview(before)}, but the {words.item} is {preview(item.label)} now; give the same {words.item}s in "
                "the same order, or another path"
            )
        if not line.is_answer:
            return None
        return self._entry.read(self._record(line)[self._entry.name])

    def add(self, item: Question, outcome: Any, weights: str) -> None:
        """Append the outcome of an item.

        Args:
            weights: the digest of the weights that generated the answer.

        Raises:
            OSError: the file cannot be written.
        """
        assert self._file is not None, "the file is open while answers arrive"
        failed = isinstance(outcome, Exception)
        line = {
            "place": item.place,
            "prompt": item.label,
            "digest": item.digest,
            "keywords": self._keywords | {CONTENT: weights},
            self._entry.name: None if failed else self._entry.write(outcome),
            "error": f"{type(outcome).__name__}: {outcome}" if failed else None,
        }
        remaining = memoryview(f"{json.dumps(line)}\n".encode())
        while remaining:
            remaining = remaining[self._file.write(remaining) :]

    def check_adapter(self, content: str) -> None:
        """Refuse an adapter with another content than when the file was opened."""
        if content != (before := self._keywords.get(ADAPTER, "")):
            raise InvalidRequest(
                f"the adapter of this map is {content or 'removed'}, and was {before} when the map began; give the map "
                "of the new adapter another path"
            )

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
                f"another {self._words.writer} is writing {self._path}; wait for its end, or give another path"
            ) from None
        except OSError:  # the file system has no locks
            return

    def _read(self, reader: BinaryIO) -> int:
        """Index all lines, and return the offset after the last complete one."""
        at = 0
        for number, line in enumerate(reader, 1):
            if not line.endswith(b"\n"):
                if not (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
                    raise self._foreign(number)
                break
            self._index(number, at, line)
            at += len(line)
        return at

    def _index(self, number: int, at: int, line: bytes) -> None:
        """Index one complete line.

        Args:
            number: the number of the line, from 1.
            at: its offset in bytes.
            line: its content.
        """
        try:
            record = json.loads(line)
            place, digest, keywords = record["place"], record["digest"], record["keywords"]
            is_answer = record["error"] is None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._foreign(number) from error
        if type(place) is not int or not isinstance(keywords, dict):
            raise self._foreign(number)
        if CONTENT not in keywords:
            raise InvalidRequest(
                f"{self._path} was written by an earlier version of Rekindle, which did not note the weights of its "
                "answers, so it is not known whether they are of this model; give another path"
            )
        if different := list(_differences(keywords, self._keywords)):
            raise InvalidRequest(
                f"the answers in {self._path} were made with {', '.join(before for before, _ in different)}, and this "
                f"{self._words.call} has {', '.join(now for _, now in different)}; give the same, or another path"
            )
        self._lines[place] = _Line(at, digest, is_answer)

    def _foreign(self, number: int) -> InvalidData:
        """Return the error for a line of another origin."""
        return InvalidData(
            f"line {number} of {self._path} was not written by {self._words.made_by}, so nothing is appended; give "
            "another path"
        )

    def _record(self, line: _Line) -> dict[str, Any]:
        """Read the object of a line from the file."""
        with open(self._path, "rb") as file:
            file.seek(line.at)
            record: dict[str, Any] = json.loads(file.readline())
        return record


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the old and the new text of each option that differs. Names of models may: their content is compared."""
    for name in {**before, **now}:
        if before.get(name) != now.get(name) and name != MODEL:
            yield _keyword_text(name, before), _keyword_text(name, now)


def _keyword_text(name: str, keywords: Mapping[str, Any]) -> str:
    if name not in keywords:
        return f"the default {name}"
    of_model = f" of {preview(keywords[MODEL])}" if name == CONTENT else ""
    return f"{name}={preview(keywords[name])}{of_model}"
