"""Looking at an engine while it runs."""

import threading
from types import TracebackType

from rekindle.engine.handled import Handled, See
from rekindle.engine.thread import EngineThread
from rekindle.errors import ConfigError


class Watching:
    """Has a function told of every message within a `with` statement.

    Args:
        engine: the thread that it lives on.
        see: called on the engine's thread. After an error it is called no more, and leaving the `with` raises it.

    Raises:
        ConfigError: `see` is no function.
    """

    def __init__(self, engine: EngineThread, see: See):
        if not callable(see):
            raise ConfigError(f"see must be a function that takes a rekindle.Handled, got {see!r:.80}")
        self._engine, self._function = engine, see
        self._error: Exception | None = None
        self._watches = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        how = "on" if self._watches else "off: enter it with 'with'"
        return f"<rekindle.Watching by {self._function!r:.80}, {how}>"

    def __enter__(self) -> "Watching":
        self._error = None
        self._engine.watch(self._see)
        self._watches = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._engine.unwatch(self._see)
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
