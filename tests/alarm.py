"""An end for processes of tests that hang where no Python code runs any more: a pytest plugin.

pytest's own, `faulthandler_timeout`, waits for the end of a thread after each test, which took 3 % of `make test`.
"""

import faulthandler
import os
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

INTERVAL: Final = 60.0
"""Seconds between two settings of the alarm."""


@dataclass(eq=False)  # pluggy hashes plugins
class Alarm:
    """Ends the process with the stacks of all threads where a test takes much longer than its timeout.

    Attributes:
        seconds: the time after which the process ends; up to `INTERVAL` later.
    """

    seconds: float
    _next: float = 0.0
    _stderr: int = field(default_factory=lambda: os.dup(2))

    def pytest_runtest_setup(self) -> None:
        """Set the alarm anew, unless that was a moment ago."""
        if (now := monotonic()) >= self._next:
            self._next = now + INTERVAL
            faulthandler.dump_traceback_later(self.seconds + INTERVAL, exit=True, file=self._stderr)

    def pytest_sessionfinish(self) -> None:
        """Take the alarm back."""
        faulthandler.cancel_dump_traceback_later()
