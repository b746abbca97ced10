"""Looking at an engine while it runs."""

import threading
from types import TracebackType

from rekindle.handled import Handled, See
from rekindle.host import Host


class Watching:
    """Has a function told of every message within a `with` statement.

    Args:
        host: of the engine.
        see: called on the engine's thread. After an error it is called no more, and leaving the `with` raises it.
    """

    def __init__(self, host: Host, see: See):
        self._host, self._function = host, see
        self._error: Exception | None = None
        self._watches = False
        self._lock = threading.RLock()

    def __enter__(self) -> "Watching":
        self._error, self._watches = None, True
        self._host.watch(self._see)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._host.unwatch(self._see)
        with self._lock:  # the engine may be telling of a message at this moment
            self._watches = False
        if self._error is not None and error is None:
            raise self._error

    def _see(self, handled: Handled) -> None:
        with self._lock:
            if self._watches and self._error is None:
                try:
                    self._function(handled)
                except Exception as error:
                    self._error = error
