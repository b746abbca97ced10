"""The lines of a batch in flight: a bounded number at once, asked again without room in the engine."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any
from uuid import uuid4

import anyio
from anyio import sleep_forever
from starlette.types import ASGIApp

from rekindle.cli.batch.answers import BUSY, BatchAnswers
from rekindle.cli.batch.lines import BatchLine
from rekindle.core.concurrency.progress import Progress
from rekindle.notebook.progress.batch_progress import BatchProgress, LateBar
from rekindle.server.tracing.spans import REQUEST_IDS
from rekindle.session.session import Session

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


class FileRun:
    """Run of a batch.

    Args:
        session: the session.
        app: the app of a server over the session.
        answers: the answers, open.
        weights: returns the digest of the weights in use.
        stored: the statuses of answers of earlier runs.
        count: the number of lines.

    Attributes:
        stored, done: the number of lines answered by earlier runs, and of all answered lines.
        statuses: the number of answers by status.
    """

    def __init__(
        self,
        session: Session,
        app: ASGIApp,
        answers: BatchAnswers,
        weights: Callable[[], str],
        stored: Iterable[int],
        count: int,
    ):
        self._session, self._app, self._answers, self._weights, self._count = session, app, answers, weights, count
        self.statuses = Counter(stored)
        self.stored = self.done = self.statuses.total()
        self._in_flight = 0
        self._change = anyio.Event()

    async def run(self, lines: Iterator[BatchLine], window: int, *, progress: bool) -> None:
        """Answer lines, at most `window` at once.

        Raises:
            SessionError: the engine failed; the answers so far are in their file.
        """
        bar = LateBar(self._report(), enabled=progress)
        try:
            async with anyio.create_task_group() as drawing:
                drawing.start_soon(_draw, bar)
                async with anyio.create_task_group() as workers:
                    for _ in range(window):
                        workers.start_soon(self._work, lines)
                drawing.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        finally:
            bar.close()

    async def _work(self, lines: Iterator[BatchLine]) -> None:
        for line in lines:
            answer = await self._answer(line)
            if self._session.error is not None:
                raise self._session.error
            self._answers.add(line, answer, self._weights())
            self.done += 1
            self.statuses[answer["response"]["status_code"]] += 1

    async def _answer(self, line: BatchLine) -> dict[str, Any]:
        """Return the answer of a line. Without room in the engine, wait for the end of others, and ask again."""
        while True:
            self._in_flight += 1
            try:
                answer = await ask(self._app, line)
            finally:
                self._in_flight -= 1
                self._change.set()
                self._change = anyio.Event()
            if answer["response"]["status_code"] != BUSY or not self._in_flight:
                return answer
            await self._change.wait()

    def _report(self) -> Callable[[], Progress]:
        """Return a function for the progress: answered lines, tokens per second, and the remaining time."""
        pace, before = BatchProgress("answering"), self._session.stats.scheduler.generated_tokens

        def report() -> Progress:
            remaining = pace.remaining(self._count - self.done, self.done - self.stored)
            tokens = self._session.stats.scheduler.generated_tokens - before
            return pace.report(self.done, self._count, tokens, remaining)

        return report


async def _draw(bar: LateBar) -> None:
    """Draw the progress until cancelled."""
    while bar.timeout is not None:
        await anyio.sleep(bar.timeout)
        bar.look()
