"""The loop of the engine's tests."""

from tests.loops import anyio_backend as anyio_backend
