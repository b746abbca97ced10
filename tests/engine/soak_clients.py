"""Clients of a server: such that ask and check what comes, and such that leave, flood, stall, or send nonsense."""

import json
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import h11
import numpy as np
from anyio.abc import SocketAttribute, SocketStream

from tests.engine.soak_answers import content_of

CLOSER = 1e-3
"""How near scores must come: batches of other sizes add in another order."""
DRIP_SECONDS = 0.02
ERRING = ("/v1/completions", "/v1/messages", "/v1/responses", "/v1/rerank", "/api/generate")
"""The paths of nonsense."""
STALL_SECONDS = 120
"""How long a client that stalls reads nothing: longer than the server waits for it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request and what its session answers.

    Attributes:
        path, body: what is sent.
        texts: of its choices; none for embeddings, scores and tokens.
        numbers: the log-probabilities of the tokens of each choice if asked for; or embeddings, scores or tokens.
    """

    path: str
    body: dict[str, Any]
    texts: Sequence[str]
    numbers: Sequence[Sequence[float]]


class Wire:
    """A connection, read by h11."""

    def __init__(self, stream: SocketStream):
        self.stream, self._h11 = stream, h11.Connection(h11.CLIENT)

    def request(self, path: str, body: bytes, **headers: str) -> bytes:
        """Return a request as it is sent."""
        given = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body)), **headers}
        head = self._h11.send(h11.Request(method="POST", target=path, headers=list(given.items())))
        return (
            (head or b"") + (self._h11.send(h11.Data(data=body)) or b"") + (self._h11.send(h11.EndOfMessage()) or b"")
        )

    async def status(self) -> int:
        """Read the head of an answer, and return its status."""
        response = await self._event()
        assert isinstance(response, h11.Response), response
        return response.status_code

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, to its end."""
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), event
            yield bytes(event.data)

    async def body(self) -> bytes:
        """Read the body to its end."""
        return b"".join([piece async for piece in self.pieces()])

    def next(self) -> None:
        """Go on to the next request on this connection."""
        self._h11.start_next_cycle()

    async def _event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            try:
                self._h11.receive_data(await self.stream.receive())
            except anyio.EndOfStream:
                self._h11.receive_data(b"")
        return event


class Clients:
    """Clients that each do one thing, chosen at random.

    Attributes:
        did: how often each thing was done to its end.
        statuses: how often each status came.
    """

    def __init__(self, address: tuple[str, int], cases: Sequence[Case], seed: int):
        self._address, self._cases, self._chance = address, cases, random.Random(seed)
        self.did, self.statuses = Counter[str](), Counter[int]()

    async def act(self, *acts: Callable[[], Any]) -> None:
        """Do one of some things."""
        act = self._chance.choice(acts)
        await act()
        self.did[act.__name__] += 1

    # Who asks

    async def asks(self) -> None:
        """Ask several times on one connection, and check each answer."""
        async with self._connected() as wire:
            for _ in range(self._chance.randrange(1, 4)):
                await self._ask(wire, lambda data: wire.stream.send(data))
                wire.next()

    async def drips(self) -> None:
        """Ask byte by byte, and check the answer."""

        async def dripped(data: bytes) -> None:
            for place in range(0, 200):
                await wire.stream.send(data[place : place + 1] or b"")
                await anyio.sleep(DRIP_SECONDS)
            await wire.stream.send(data[200:])

        async with self._connected() as wire:
            await self._ask(wire, dripped)

    async def _ask(self, wire: Wire, send: Callable[[bytes], Any]) -> None:
        case = self._chance.choice(self._cases)
        stream = bool(case.texts) and self._chance.random() < 0.5
        body = case.body | ({"stream": stream} if case.texts else {})  # Ollama streams by default
        await send(wire.request(case.path, json.dumps(body).encode()))
        status, answer = await wire.status(), await wire.body()
        self.statuses[status] += 1
        assert status == 200, answer
        texts, numbers = content_of(case.path, answer, stream=stream)
        assert texts == list(case.texts), (case, stream)
        for found, expected in zip(numbers, case.numbers, strict=True):
            np.testing.assert_allclose(found, expected, atol=CLOSER, err_msg=f"{case} {stream}")

    # Who leaves

    async def leaves_in_the_body(self) -> None:
        """Go away before all of the request is sent."""
        async with self._leaving() as wire:
            data = self._long(wire)
            await wire.stream.send(data[: self._chance.randrange(1, len(data))])
            await anyio.sleep(self._chance.choice((0, 0.01)))

    async def leaves_before_a_token(self) -> None:
        """Go away once the request is sent."""
        async with self._leaving() as wire:
            await wire.stream.send(self._long(wire))
            await anyio.sleep(self._chance.choice((0, 0.01)))

    async def leaves_in_the_stream(self) -> None:
        """Go away after some pieces of an answer."""
        async with self._leaving() as wire:
            await wire.stream.send(self._long(wire, stream=True))
            self.statuses[await wire.status()] += 1
            left = self._chance.randrange(1, 20)
            async for _ in wire.pieces():
                left -= 1
                if not left:
                    break

    # Who sends nonsense

    async def errs(self) -> None:
        """Send a body that is none, or cannot be served."""
        bodies = (
            b"{",
            b"\xff\xfe",
            b"[]",
            b"",
            b'{"prompt": "a", "top_p": 2}',
            b'{"prompt": "a", "no": 1}',
            b"[" * 9999,
        )
        async with self._connected() as wire:
            path = self._chance.choice(ERRING)
            await wire.stream.send(wire.request(path, self._chance.choice(bodies)))
            status, body = await wire.status(), await wire.body()
            self.statuses[status] += 1
            assert status == 400, body
            error = json.loads(body)["error"]
            assert error if path == "/api/generate" else error["message"]

    async def sends_too_much(self) -> None:
        """Send a body that is too long."""
        async with self._connected() as wire:
            with suppress(anyio.BrokenResourceError):
                await wire.stream.send(wire.request("/v1/completions", b" " * (33 << 20)))
            status = await wire.status()
            self.statuses[status] += 1
            assert status == 413

    async def floods(self) -> None:
        """Send headers that are too many, too long, or have no end, until the server will not have them."""
        piece = self._chance.choice((b"x-%d: 1\r\n" % 1 * 500, b"x" * 5000, b"\x00\r\n\r\n", b"\r\n\r\n\x01"))
        async with self._connected() as wire:
            with suppress(anyio.BrokenResourceError):
                await wire.stream.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
                for _ in range(10_000):
                    await wire.stream.send(piece)
                raise AssertionError("the server read on and on")

    # Who stays. Each is let go by the server, or when a part of the soak ends.

    async def is_silent(self) -> None:
        """Connect, send a part of a request or nothing, and wait until the server will wait no more."""
        begun = self._chance.choice(
            (b"", b"G", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        )
        async with self._connected() as wire:
            if begun:
                await wire.stream.send(begun)
            await _end(wire)

    async def drips_without_end(self) -> None:
        """Send a header byte by byte, without an end."""
        async with self._connected() as wire:
            with suppress(anyio.BrokenResourceError):
                await wire.stream.send(b"GET /health HTTP/1.1\r\nx: ")
                while True:
                    await wire.stream.send(b"x")
                    await anyio.sleep(1)

    async def stalls(self) -> None:
        """Ask for a long stream, and read only its first bytes until the server will wait no more."""
        async with self._connected() as wire:
            raw: socket.socket = wire.stream.extra(SocketAttribute.raw_socket)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await wire.stream.send(self._long(wire, stream=True, n=self._chance.choice((2, 4, 8)), logprobs=20))
            self.statuses[await wire.status()] += 1
            await anyio.sleep(STALL_SECONDS)
            with anyio.fail_after(STALL_SECONDS):
                await _end(wire)

    def _long(self, wire: Wire, **given: Any) -> bytes:
        prompt = [self._chance.randrange(200) for _ in range(self._chance.randrange(1, 60))]
        body = {"prompt": prompt, "max_tokens": 180, "ignore_eos": True, "temperature": 1, "logprobs": 0, **given}
        return wire.request("/v1/completions", json.dumps(body).encode())

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Wire]:
        async with await anyio.connect_tcp(*self._address) as stream:
            yield Wire(stream)

    @asynccontextmanager
    async def _leaving(self) -> AsyncIterator[Wire]:
        async with self._connected() as wire:
            yield wire
            if self._chance.random() < 0.5:  # by a reset, as of a machine that has crashed
                raw = wire.stream.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


async def _end(wire: Wire) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await wire.stream.receive()
