"""The session that most tests with images share, and their loop."""

from collections.abc import Iterator
from typing import Any

import pytest

import rekindle
from rekindle import Session
from tests.engine.pictured import GOLDEN
from tests.loops import anyio_backend as anyio_backend


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Return a session of the tiny SmolVLM with its tower and buffer, in chunks of three blocks."""
    settings: Any = {"page_size": 16, "max_prefill_tokens": 64, "restore": "off", "progress": False}
    with rekindle.open_sync(GOLDEN, dtype="float32", max_running=4, **settings) as session:
        yield session
