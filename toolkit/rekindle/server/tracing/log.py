"""The server's log. Each line during a request has the id of its trace."""

import logging
import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

LOG: Final = logging.getLogger("rekindle.server")
"""The logger of the server."""
trace_id: ContextVar[str | None] = ContextVar("rekindle_trace_id", default=None)
"""The id of the current request's trace, 32 hexadecimal digits; None outside of requests."""


MOST_NOTICES: Final = 100
"""The most notices of a server. Each one has names chosen by a client, so there may be any number."""


class Notices:
    """Warnings of a server, each logged once: a client repeats its fields in each request."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, notes: Iterable[str]) -> None:
        """Log the notes that are new."""
        for note in notes:
            if note not in self._logged and len(self._logged) < MOST_NOTICES:
                self._logged.add(note)
                LOG.warning("a request has parts without effect: %s", note)


_PATH: Final = re.compile(
    r"""(?<=')(?:~|[A-Za-z]:)?[\\/][^'\n]+(?=')|(?<=")(?:~|[A-Za-z]:)?[\\/][^"\n]+(?=")"""
    r"""|(?<![\w:/\\.~-])(?:~|[A-Za-z]:)?[\\/][^\s'",;()]*[^\s'",;:().]"""
)
"""An absolute path: in quotes, or up to a space."""


def without_paths(error: Exception) -> str:
    """Return the message of an error with the last part of each absolute path alone."""
    return _PATH.sub(lambda match: re.split(r"[\\/]", match[0].rstrip("\\/"))[-1], str(error))


class TraceFormatter(logging.Formatter):
    """Formatter with the id of the current trace at the end of each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line, trace = super().format(record), trace_id.get()
        return line if trace is None else f"{line} trace_id={trace}"
