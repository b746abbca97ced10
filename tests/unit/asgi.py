"""A client of an ASGI app in the same process, which may go away, or read slowly."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

JSON = "application/json"


@dataclass
class Reply:
    """The answer to one request, as far as it has come.

    Attributes:
        status: 0 as long as nothing has come.
        headers: by their names in lower case.
        pieces: the parts of the body, as they came.
        complete: whether the body has ended.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of the body."""
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events, without the final [DONE]."""
        lines = [line for line in self.body.decode().removesuffix("\n\n").split("\n\n") if line != ": ping"]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def take(self, message: Mapping[str, Any]) -> None:
        """Take a message from the app."""
        if message["type"] == "http.response.start":
            assert self.status == 0, "an answer begins once"
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message.get("headers", ())}
        else:
            assert self.status, "an answer begins with its status"
            assert not self.complete, "an answer ends once"
            self.pieces.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)


class Caller:
    """One request to an app.

    Args:
        body: sent as JSON; bytes are sent as they are.
        stops_at: called with the reply after each part of it; from when it returns True on, the client reads nothing
            until `read_on` is set.

    Attributes:
        reply: the reply so far.
        disconnect: set it, and the client disconnects.
        read_on: see above.
    """

    def __init__(
        self,
        app: Any,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        stops_at: Callable[[Reply], bool] = lambda reply: False,
    ):
        self._app, self._stops_at = app, stops_at
        self._body = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        all_headers = {"content-type": JSON, **(headers or {})}
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method or ("GET" if body is None else "POST"),
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
            "server": ("localhost", 80),
            "client": ("localhost", 1),
        }
        self.reply = Reply()
        self.disconnect, self.read_on = anyio.Event(), anyio.Event()
        self._body_sent = False

    async def run(self) -> Reply:
        """Serve the request to its end, and return the reply."""
        await self._app(self._scope, self._receive, self._send)
        return self.reply

    async def _receive(self) -> dict[str, Any]:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        self.reply.take(message)
        if self._stops_at(self.reply):
            await self.read_on.wait()


async def ask(app: Any, path: str, body: Any = None, **how: Any) -> Reply:
    """Serve one request whose client stays and reads, and return the reply."""
    return await Caller(app, path, body, **how).run()
