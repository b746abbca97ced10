"""The files of a batch: the answers so far, safe from a kill at any byte, and the output in the order of lines."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rekindle.cli.batch.lines import BatchLine
from rekindle.core.errors import InvalidRequest
from rekindle.core.store.directory import atomic_write
from rekindle.mapping.answer_file import AnswerFile, FileWords
from rekindle.server.common.events import large_json_bytes

WORDS: Final = FileWords("batch", "rekindle batch", "command", "line", "place", 1, "request")
PART: Final = ".part"
"""The suffix of the file with the answers so far."""
FAILED: Final = 500
"""The least status of a failure of the server; the same request may have an answer later."""
BUSY: Final = 429
"""The status of a server without room."""


class LineEntry:
    """Entry of the answers so far: a line of the output file."""

    name = "line"

    def write(self, result: Any) -> Any:
        """Return the line."""
        return result

    def read(self, data: Any) -> Any:
        """Return the line."""
        return data


class Failure(Exception):
    """An answer with a failure of the server."""


class BatchAnswers:
    """The answers of a batch.

    Args:
        output: the path of the output file.
        keywords: the content with an effect on answers beside the lines and the session.

    Attributes:
        part: the path of the answers so far.
        failed: the answers with a failure of the server, by the place of their lines.
    """

    def __init__(self, output: Path, keywords: Mapping[str, Any]):
        self._output, self.part = output, output.with_name(output.name + PART)
        self._file = AnswerFile(self.part, keywords, LineEntry(), WORDS)
        self.failed: dict[int, dict[str, Any]] = {}

    def open(self, content: Mapping[str, str]) -> None:
        """Read the answers of earlier runs; see `AnswerFile.open`."""
        self._content = dict(content)
        self._file.open(content)

    def status(self, line: BatchLine) -> int | None:
        """Return the status of the answer of an earlier run; None without one, or if the server had failed."""
        answer = self._file.answer(line)
        return None if answer is None else int(answer["response"]["status_code"])

    def add(self, line: BatchLine, answer: dict[str, Any], weights: str) -> None:
        """Append an answer; `weights` is the digest of the weights in use."""
        if is_failure(answer):
            self.failed[line.place] = answer
            self._file.add(line, Failure(f"status {answer['response']['status_code']}"), weights)
        else:
            self._file.add(line, answer, weights)

    def close(self) -> None:
        """Close the file of the answers so far."""
        self._file.close()

    def finish(self, lines: Iterable[BatchLine]) -> None:
        """Write the output, and remove the answers so far unless a later run may repeat some lines."""
        self._file.close()
        self._file.open(self._content)  # reads where each answer is
        try:
            with atomic_write(self._output) as file:
                if os.chmod in os.supports_fd:  # the file is for those who may read any other of this user
                    os.chmod(file.fileno(), self.part.stat().st_mode & 0o777)
                for line in lines:
                    answer = self._file.answer(line) or self.failed[line.place]
                    file.write(large_json_bytes(answer) + b"\n")
        finally:
            self._file.close()
        if not self.failed:
            with suppress(FileNotFoundError):
                self.part.unlink()


def is_failure(answer: Mapping[str, Any]) -> bool:
    """Return True for an answer with a failure of the server, or from a server without room."""
    status: int = answer["response"]["status_code"]
    return status >= FAILED or status == BUSY


def check_output(source: Path, output: Path) -> None:
    """Check the path of the output before a model opens.

    Raises:
        InvalidRequest: the file exists, its folder does not, or it has the requests.
    """
    part = output.with_name(output.name + PART)
    if source in (output, part) or (output.exists() and source.samefile(output)):
        raise InvalidRequest(f"{output} has the requests; give another path for the answers")
    if not output.parent.is_dir():
        raise InvalidRequest(f"there is no folder {output.parent} for the answers; make it, or give another path")
    if output.exists() and not part.exists():
        raise InvalidRequest(f"there is a file {output} already; remove it, or give another path for the answers")
