"""Headers and pings of streams without a text to send."""

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rekindle.server.common.errors import PARTING_SECONDS, api_error_of, shutdown_error
from rekindle.server.common.events import StreamForm
from rekindle.server.http.limits import Limits
from rekindle.server.http.streaming import HEADERS


class KeepAlive:
    """ASGI app with another app's stream. While the other one is silent, it sends headers and pings.

    An error within `limits.first_seconds` has its own status, and a later one is an event of the stream.

    Args:
        app: the other app.
        limits: the times of the headers and the pings.
        form: the form of the stream.
    """

    def __init__(self, app: ASGIApp, limits: Limits, form: StreamForm):
        self._app, self._limits, self._form = app, limits, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        form = self._form
        beat = _Beat(form, self._limits, send)
        errors: list[Exception] = []
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(beat.run)
                try:
                    await self._app(scope, receive, beat.send)
                except Exception as error:  # the task group would wrap it in an exception group
                    errors.append(error)
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():  # the server is shutting down
            with anyio.move_on_after(PARTING_SECONDS, shield=True):
                await beat.end(form.error(shutdown_error()))
            raise
        for failure in errors:
            if isinstance(failure, ClientDisconnect) or not beat.has_begun:
                raise failure
            await beat.end(form.error(api_error_of(failure, {})))


class _Beat:
    """The heart of a stream: forwards messages of its app, and sends pings between them.

    Attributes:
        has_begun: whether the response began with a ping.
    """

    def __init__(self, form: StreamForm, limits: Limits, send: Send):
        self._form, self._limits, self._send = form, limits, send
        self._lock = anyio.Lock()
        self._latest = anyio.current_time()  # time of the latest message
        self._has_started = self._has_ended = self.has_begun = False

    async def send(self, message: Message) -> None:
        """Send a message of the app, except for a second start."""
        async with self._lock:
            starts = message["type"] == "http.response.start"
            if not (starts and self._has_started):
                await self._send(message)
            self._has_started = True
            self._has_ended = not starts and not message.get("more_body", False)
            self._latest = anyio.current_time()

    async def end(self, last: bytes) -> None:
        """End the stream with a last event, if it began with a ping and has not ended."""
        if self.has_begun and not self._has_ended:
            await self.send({"type": "http.response.body", "body": last, "more_body": False})

    async def run(self) -> None:
        """Ping after each silence, until cancelled."""
        while not self._has_ended:
            period = self._limits.quiet_seconds if self._has_started else self._limits.first_seconds
            silence = anyio.current_time() - self._latest
            if silence < period:
                await anyio.sleep(period - silence)
            else:
                await self._ping()

    async def _ping(self) -> None:
        async with self._lock:
            if self._has_ended:  # while this task waited for the lock
                return
            if not self._has_started:
                self._has_started = self.has_begun = True
                headers = [(b"content-type", self._form.content_type.encode()), *HEADERS]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            if self._form.ping:
                await self._send({"type": "http.response.body", "body": self._form.ping, "more_body": True})
            self._latest = anyio.current_time()
