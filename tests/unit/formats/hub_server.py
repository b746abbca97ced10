"""A small hub on this machine, which fails as the real one does."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
XET_HASH = "b" * 64


def sha256(content: bytes) -> str:
    """Return the digest by which the hub names a large file."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Request:
    """A request that came: its method, path and headers in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass
class Hub:
    """A hub with the files of one model.

    Attributes:
        model: its `owner/name`.
        files: the contents by path.
        numbers: the counts of numbers in its safetensors files by data type.
        by_xet: whether its files are announced as transfers by xet, whose server never answers.
        answer: called before each request; its result is the status of a refusal with headers, or None to serve.
        cut: called before the content of each answer; returns the bytes after which the connection ends, or None.
        stalls: whether a cut waits instead, with the connection open.
        requests: the requests that came.
        address: the address of the server.
    """

    model: str
    files: dict[str, bytes]
    numbers: dict[str, int] = field(default_factory=dict)
    by_xet: bool = False
    answer: Callable[[Request], tuple[int, dict[str, str]] | None] = lambda _: None
    cut: Callable[[Request], int | None] = lambda _: None
    stalls: bool = False
    requests: list[Request] = field(default_factory=list)
    address: str = ""
    over: Event = field(default_factory=Event)

    def gets_of(self, name: str) -> list[str | None]:
        """Return the ranges asked of a file, in order."""
        return [
            request.headers.get("range")
            for request in self.requests
            if request.method == "GET" and request.path.endswith(f"/{name}")
        ]

    @contextmanager
    def serve(self) -> Iterator["Hub"]:
        """Serve the model while the context is entered."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:  # the library chose these names
                hub._handle(self, "HEAD")

            def do_GET(self) -> None:
                hub._handle(self, "GET")

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.address = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def _handle(self, handler: BaseHTTPRequestHandler, method: str) -> None:
        path = handler.path.partition("?")[0]
        request = Request(method, path, {key.lower(): value for key, value in handler.headers.items()})
        self.requests.append(request)
        if (refusal := self.answer(request)) is not None:
            status, headers = refusal
            _send(handler, status, headers, b"")
            return
        name = "/".join(path.split("/")[5:])
        if path.startswith(f"/api/models/{self.model}/tree/"):
            tree = [
                {"type": "file", "path": each, "size": len(self.files[each]), "oid": "a" * 40} for each in self.files
            ]
            _send(handler, 200, {}, json.dumps(tree).encode())
        elif "/xet-read-token/" in path:
            expiration = {"X-Xet-Token-Expiration": str(int(time.time()) + 3600)}
            _send(
                handler, 200, {"X-Xet-Cas-Url": f"{self.address}/cas", "X-Xet-Access-Token": "xet", **expiration}, b"{}"
            )
        elif path.startswith("/cas/"):
            self.over.wait()
        elif path.startswith(f"/api/models/{self.model}"):
            siblings = [{"rfilename": file} for file in self.files]
            about: dict[str, Any] = {"id": self.model, "modelId": self.model, "sha": COMMIT, "siblings": siblings}
            if self.numbers:
                about["safetensors"] = {"parameters": self.numbers, "total": sum(self.numbers.values())}
            _send(handler, 200, {}, json.dumps(about).encode())
        elif path.startswith(f"/{self.model}/resolve/") and name in self.files:
            self._serve_file(handler, request, self.files[name])
        else:
            _send(handler, 404, {"X-Error-Code": "RepoNotFound"}, b"")

    def _serve_file(self, handler: BaseHTTPRequestHandler, request: Request, content: bytes) -> None:
        headers = {"ETag": f'"{sha256(content)}"', "X-Repo-Commit": COMMIT}
        if self.by_xet and len(content) > 1 << 20:
            route = f"{self.address}/api/models/{self.model}/xet-read-token/{COMMIT}"
            headers |= {"X-Xet-Hash": XET_HASH, "X-Xet-Refresh-Route": route}
        wanted = request.headers.get("range")
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        length = self.cut(request) if request.method == "GET" else None
        _send(handler, 206 if begin else 200, headers, content[begin:], length)
        if length is not None and self.stalls:
            handler.wfile.flush()
            self.over.wait()


def _send(
    handler: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], content: bytes, cut: int | None = None
) -> None:
    """Send an answer, of which only the first bytes come if it is cut."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    if cut is not None:
        handler.close_connection = True
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(content[:cut])
