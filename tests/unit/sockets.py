"""A client of a server on a socket."""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from tests.unit.asgi import JSON
from tests.waiting import PATIENCE


def connected(url: str) -> http.client.HTTPConnection:
    """Return a connection to the server of this address."""
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)


def asking(
    url: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> http.client.HTTPConnection:
    """Return a connection on which the server was asked; if there is a body, it is sent as JSON."""
    connection = connected(url)
    data = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, data, {"content-type": JSON, **(headers or {})})
    return connection


def ask(url: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Ask the server, and return the status and the JSON of its answer."""
    with closing(asking(url, path, body, headers)) as connection, connection.getresponse() as reply:
        return reply.status, json.loads(reply.read())
