"""The lines of a batch: read, and checked before a model opens."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Any, Final

from rekindle.core.content import content_digest
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import likely
from rekindle.core.request.checks import preview
from rekindle.core.words import quantity

URLS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
FIELDS: Final = ("custom_id", "method", "url", "body")
MOST_LISTED: Final = 10
"""Most wrong lines in an error."""


STDIN: Final = "-"
"""The path that stands for standard input."""


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file of requests, which is read several times.

    Attributes:
        name: its path as its author gave it, for messages.
        path: the path to read.
    """

    name: str
    path: Path


@contextmanager
def batch_file(name: str) -> Iterator[BatchFile]:
    """Yield a file of requests: itself, or a copy of what a pipe, a device or standard input has, which is read once.

    Raises:
        OSError: it cannot be read.
    """
    path = Path(name)
    is_stdin = name == STDIN and not path.exists()
    if not is_stdin and (not path.exists() or path.is_file() or path.is_dir()):
        yield BatchFile(name, path)
        return
    with TemporaryDirectory(prefix="rekindle-batch-") as directory:
        copy = Path(directory) / "requests.jsonl"
        with copy.open("wb") as target:
            if is_stdin:
                copyfileobj(sys.stdin.buffer, target)
            else:
                with path.open("rb") as source:
                    copyfileobj(source, target)
        yield BatchFile("standard input" if is_stdin else name, copy)


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line of a batch.

    Attributes:
        place: its index among the lines with content.
        number: its number in the file, from 1.
        custom_id: the id of the request, from its author.
        url: the path of the API.
        body: the body of the request.
    """

    place: int
    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The id of the request."""
        return self.custom_id

    @property
    def digest(self) -> str:
        """Digest of the request, the same in all processes."""
        return content_digest([self.custom_id, self.url, json.dumps(self.body)])[:32]


@dataclass(frozen=True, slots=True)
class BatchContents:
    """The contents of a file without wrong lines.

    Attributes:
        count: the number of its lines.
        models: the number of the first line with each name of a model.
    """

    count: int
    models: Mapping[str, int]


class WrongLine(Exception):
    """A line is wrong; the message says how."""


def read_lines(source: BatchFile) -> Iterator[BatchLine]:
    """Yield the lines of a file checked before, one at a time."""
    with source.path.open("rb") as file:
        for place, (number, text) in enumerate(_texts(file)):
            yield _parse(place, number, text)


def check_lines(source: BatchFile) -> BatchContents:
    """Check all lines of a file.

    Raises:
        InvalidRequest: some lines are wrong; or there is none.
        OSError: the file cannot be read.
    """
    numbers: dict[str, int] = {}
    models: dict[str, int] = {}
    wrong: list[str] = []
    count = 0
    with source.path.open("rb") as file:
        for number, text in _texts(file):
            count += 1
            try:
                line = _parse(count, number, text)
                if (first := numbers.setdefault(line.custom_id, number)) != number:
                    raise WrongLine(f"its custom_id {preview(line.custom_id)} is that of line {first} too")
                if isinstance(name := line.body.get("model"), str):
                    models.setdefault(name, number)
            except WrongLine as error:
                wrong.append(f"line {number}: {error}")
    if wrong:
        raise wrong_lines(source, wrong)
    if not count:
        raise InvalidRequest(f"{source.name} has no line; each line is an object with {_joined(FIELDS)}")
    return BatchContents(count, models)


def wrong_lines(source: BatchFile, wrong: list[str]) -> InvalidRequest:
    """Return the error of a file with wrong lines, which are listed."""
    more = [f"and {len(wrong) - MOST_LISTED:,} more"] if len(wrong) > MOST_LISTED else []
    head = f"{source.name} has {quantity(len(wrong), 'wrong line')}, so nothing was asked:"
    return InvalidRequest("\n  ".join([head, *wrong[:MOST_LISTED], *more]))


def _texts(file: Any) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line with content; a mark of the encoding at the start is none."""
    for number, text in enumerate(file, 1):
        content = text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
        if content.strip():
            yield number, content


def _parse(place: int, number: int, text: bytes) -> BatchLine:
    """Return the line of a text.

    Raises:
        WrongLine: it is no request of a batch.
    """
    try:
        value = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WrongLine(f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise WrongLine(f"it must be an object with {_joined(FIELDS)}, got {preview(value)}")
    if missing := [name for name in FIELDS if value.get(name) is None]:
        raise WrongLine(f"it lacks {_joined(missing)}; it must have {_joined(FIELDS)}")
    if unknown := [name for name in value if name not in FIELDS]:
        raise WrongLine(f"it has {preview(unknown[0])}, which no line has; there are {_joined(FIELDS)}")
    custom_id, method, url, body = (value[name] for name in FIELDS)
    if not isinstance(custom_id, str) or not custom_id:
        raise WrongLine(f"custom_id must be a text, got {preview(custom_id)}")
    if method != "POST":
        raise WrongLine(f"method must be 'POST', got {preview(method)}")
    if url not in URLS:
        hint = likely(url, URLS) if isinstance(url, str) else None
        raise WrongLine(f"url must be one of {', '.join(URLS)}, got {preview(url)}{f'; {hint}' if hint else ''}")
    if not isinstance(body, dict):
        raise WrongLine(f"body must be an object, got {preview(body)}")
    if body.get("stream"):
        raise WrongLine("its body has stream, and a line of a file has its answer at once: leave stream out")
    return BatchLine(place, number, custom_id, url, body)


def _joined(names: Any) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else str(last)
