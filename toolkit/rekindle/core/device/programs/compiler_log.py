"""Silence of the compiler's own log during the compilation of a session's programs.

After two minutes of a compilation, XLA logs an alarm with advice for its developers, and ipykernel shows the alarm in
red in the running cell. Errors of the compiler are exceptions too, so the silence hides none.
"""

import os
import threading
from collections.abc import Callable
from typing import Final

import jax

FATAL: Final = 3
"""Smallest level of a message that is written meanwhile."""
DEFAULT: Final = "1"
"""Level set by JAX on import. Another value is a choice of the user and stays."""


class Silence:
    """Block without messages of XLA; blocks of several threads may overlap.

    Args:
        set_level: sets the smallest level of written messages; None changes nothing.
    """

    def __init__(self, set_level: Callable[[int], None] | None):
        self._set_level = set_level
        self._lock = threading.Lock()
        self._blocks = 0

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1 and self._set_level is not None and _is_default():
                self._set_level(FATAL)

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0 and self._set_level is not None and _is_default():
                self._set_level(int(DEFAULT))


def _is_default() -> bool:
    """Return True without a level from the environment or the settings of JAX."""
    level = getattr(jax.config, "jax_logging_level", None)
    return level in (None, "NOTSET") and os.environ.get("TF_CPP_MIN_LOG_LEVEL") == DEFAULT


def _set_level() -> Callable[[int], None] | None:
    try:
        from jaxlib import utils  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # in another jaxlib, the log stays as it is
        return None
    return getattr(utils, "absl_set_min_log_level", None)


silent: Final = Silence(_set_level())
