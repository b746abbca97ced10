"""Observation of an engine's messages by a user's function."""

import threading
from typing import TYPE_CHECKING

from rekindle.core.errors import ConfigError
from rekindle.core.messages.record import MessageRecord, Observer

if TYPE_CHECKING:
    from rekindle.assembly.thread import EngineThread


class Watching:
    """A context manager to call a function with every message handled within its `with` statement.

    Args:
        see: the function, called on the engine's thread. After it raises an error, it is not called again, and the end
            of the `with` statement raises the error.

    Raises:
        ConfigError: `see` is not a function.
    """

    def __init__(self, engine: "EngineThread", see: Observer):
        if not callable(see):
            raise ConfigError(f"see must be a function that takes a rekindle.MessageRecord, got {see!r:.80}")
        self._engine, self._function = engine, see
        self._error: BaseException | None = None
        self._watches = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        how = "on" if self._watches else "off: enter it with 'with'"
        return f"<rekindle.Watching by {self._function!r:.80}, {how}>"

    def __enter__(self) -> "Watching":
        self._error = None
        self._engine.watch(self._observe)
        self._watches = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self._engine.unwatch(self._observe)
        with self._lock:  # the engine's thread may be calling the function at this moment
            self._watches = False
        if self._error is not None and error is None:
            raise self._error

    def _observe(self, record: MessageRecord) -> None:
        with self._lock:
            if self._watches and self._error is None:
                try:
                    self._function(record)
                except BaseException as error:  # even SystemExit would end the engine for all
                    self._error = error
