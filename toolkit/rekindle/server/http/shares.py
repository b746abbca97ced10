"""Shares of scarce things of a server, given to clients in turn."""

import hashlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
from starlette.requests import Request

PICTURED_AT_ONCE: Final = 4
"""Requests with images that are prepared at once."""
_KEYS: Final = ("authorization", "x-api-key")


def client_of(request: Request) -> str:
    """Return the name of the client of a request: a digest of the key, or else the address."""
    key = next((value for name in _KEYS if (value := request.headers.get(name))), None)
    if key is not None:
        return hashlib.sha256(key.encode()).hexdigest()
    return "" if request.client is None else request.client.host


@dataclass(slots=True)
class _Waiting:
    amount: int
    turn: anyio.Event = field(default_factory=anyio.Event)


class Shares:
    """An amount of something, such as bytes, for requests at once. Clients get shares in turn.

    Args:
        total: the whole amount.
        most: the largest part for one client.
    """

    def __init__(self, total: int, most: int):
        self._free, self._most = total, most
        self._in_use: dict[str, int] = {}
        self._waiting: dict[str, deque[_Waiting]] = {}  # the first client has the next turn

    @asynccontextmanager
    async def take(self, client: str, amount: int = 1) -> AsyncIterator[None]:
        """Wait for an amount, and hold the amount during a block.

        Args:
            client: the client's name.
            amount: the amount; the largest part for one client instead of more.
        """
        amount = min(amount, self._most)
        waiting = _Waiting(amount)
        self._waiting.setdefault(client, deque()).append(waiting)
        self._give()
        try:
            await waiting.turn.wait()
            yield
        finally:
            if waiting.turn.is_set():
                self._free += amount
                self._in_use[client] -= amount
                if not self._in_use[client]:
                    del self._in_use[client]
            else:
                self._leave(client, waiting)
            self._give()

    def _give(self) -> None:
        """Give shares as long as there are any."""
        while self._gives_one():
            pass

    def _gives_one(self) -> bool:
        """Give a share to the next client; return False for none. A client in need of more than is free goes first."""
        for client, (waiting, *_) in self._waiting.items():
            amount = self._in_use.get(client, 0) + waiting.amount
            if amount > self._most:
                continue
            if waiting.amount > self._free:
                return False
            self._leave(client, waiting)
            if client in self._waiting:
                self._waiting[client] = self._waiting.pop(client)  # behind all others
            self._free -= waiting.amount
            self._in_use[client] = amount
            waiting.turn.set()
            return True
        return False

    def _leave(self, client: str, waiting: _Waiting) -> None:
        queue = self._waiting[client]
        queue.remove(waiting)
        if not queue:
            del self._waiting[client]
