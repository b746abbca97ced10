"""The terminal's changes of the process, undone after each test."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _log_of_the_server() -> Iterator[None]:
    """Restore the server's log: `rekindle serve` writes it to the stderr of the test."""
    log = logging.getLogger("rekindle.server")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)
