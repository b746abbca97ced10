"""Gate before the models of a server, for pauses."""

import anyio


class Gate:
    """Gate between requests and models; while closed, requests wait in front of it."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """True if requests wait."""
        return self._event is not None

    def close(self) -> None:
        """Let no more requests pass. Idempotent."""
        self._event = self._event or anyio.Event()

    def open(self) -> None:
        """Let all requests pass. Idempotent."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> bool:
        """Wait until the gate is open, and return True."""
        while self._event is not None:
            await self._event.wait()
        return True
