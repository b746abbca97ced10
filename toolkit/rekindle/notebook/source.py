"""What a dashboard asks of an engine."""

from typing import Protocol

from rekindle.notebook.board import Facts


class Source(Protocol):
    """An engine. Any thread may call any method; none of them waits."""

    def look(self, at: float) -> Facts:
        """How it is, at this time of `time.perf_counter`."""

    def pause(self) -> None:
        """Have it pause.

        Raises:
            SessionError: it has ended.
        """

    def resume(self) -> None:
        """Have it go on; raises as `pause`."""

    def cancel(self, request_id: int) -> None:
        """End a request, if it has not ended."""
