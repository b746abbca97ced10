"""One request to the app of a server in this process, without HTTP: the same answer, and the same errors."""

import json
from collections.abc import MutableMapping
from typing import Any
from uuid import uuid4

from anyio import sleep_forever
from starlette.types import ASGIApp

from rekindle.cli.batch.lines import BatchLine
from rekindle.server.tracing.spans import REQUEST_IDS

Message = MutableMapping[str, Any]


async def ask(app: ASGIApp, line: BatchLine) -> dict[str, Any]:
    """Return the line of the output file for a line of a batch."""
    status, request_id, pieces = 0, "", list[bytes]()
    messages = [{"type": "http.request", "body": json.dumps(line.body).encode()}]

    async def receive() -> Message:
        if not messages:
            await sleep_forever()  # the client of a batch stays
        return messages.pop()

    async def send(message: Message) -> None:
        nonlocal status, request_id
        if message["type"] == "http.response.start":
            status, request_id = message["status"], dict(message["headers"])[REQUEST_IDS[0]].decode()
        else:
            pieces.append(message["body"])

    await app(_scope(line.url), receive, send)
    response = {"status_code": status, "request_id": request_id, "body": json.loads(b"".join(pieces))}
    return {"id": f"batch_req_{uuid4().hex}", "custom_id": line.custom_id, "response": response, "error": None}


def _scope(path: str) -> dict[str, Any]:
    """Return the ASGI scope of a POST of JSON."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
