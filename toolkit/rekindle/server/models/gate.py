"""Gate before the models of a server, for pauses."""

from collections.abc import Collection

import anyio


class Gate:
    """Gate between requests and models. Requests of a model wait in front of a gate closed for the model."""

    def __init__(self) -> None:
        self._closed: set[str] = set()
        self._change = anyio.Event()

    def is_closed(self, model: str) -> bool:
        """Return True if requests of a model wait."""
        return model in self._closed

    def close(self, models: Collection[str]) -> None:
        """Let no more requests of models pass. Idempotent."""
        self._closed.update(models)

    def open(self, models: Collection[str]) -> None:
        """Let the requests of models pass. Idempotent."""
        self._closed.difference_update(models)
        self._change.set()
        self._change = anyio.Event()

    async def wait(self, model: str) -> None:
        """Wait until the gate is open for a model."""
        while self.is_closed(model):
            await self._change.wait()
