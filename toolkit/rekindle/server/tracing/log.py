"""The server's log. Each line during a request has the id of its trace."""

import logging
from contextvars import ContextVar
from typing import Final

LOG: Final = logging.getLogger("rekindle.server")
"""The logger of the server."""
trace_id: ContextVar[str | None] = ContextVar("rekindle_trace_id", default=None)
"""The id of the current request's trace, 32 hexadecimal digits; None outside of requests."""


class TraceFormatter(logging.Formatter):
    """Formatter with the id of the current trace at the end of each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line, trace = super().format(record), trace_id.get()
        return line if trace is None else f"{line} trace_id={trace}"
