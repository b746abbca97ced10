"""One request and its answer: the body, the model, the connection."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rekindle.client.handle import Handle
from rekindle.core.errors import RekindleError
from rekindle.results.generation import Generation
from rekindle.server.chosen_tokens import check_explicit, with_explicit, with_explicit_piece
from rekindle.server.errors import ApiError, api_error_of, without_copies
from rekindle.server.gate import Gate
from rekindle.server.guards import large_reply, reply
from rekindle.server.keepalive import KeepAlive
from rekindle.server.limits import Limits, on_thread
from rekindle.server.models.served import Models, ServedModel
from rekindle.server.reading.call import Call
from rekindle.server.reading.fields import LARGE, Fields, parse_body
from rekindle.server.responses import KeptResponses
from rekindle.server.streaming import EventStream, cancel, run_until_disconnect, wait_all
from rekindle.server.tracing.log import Notices
from rekindle.server.tracing.spans import record
from rekindle.server.writing.common import Chunks, Head

T = TypeVar("T")

JSON: Final = "application/json"
LARGE_ANSWER: Final = 10_000
"""Values in an answer from which on its writing takes more than a few milliseconds."""
ALTERNATIVES: Final = 8
"""About the values beside a token with log-probabilities."""
BROWSER_HEADERS = frozenset({"origin", "sec-fetch-site"})
"""Headers in requests of browsers for other sites' pages; pages cannot leave them out."""


@dataclass(frozen=True, slots=True)
class Service:
    """A server's models and rules.

    Attributes:
        models: the models.
        limits: the bounds on requests and streams.
        gate: the gate before the models.
        responses: the responses for later requests.
        strict: whether hints without effect on the model are refused.
        notices: the notes about parts of bodies without effect.
    """

    models: Models
    limits: Limits
    gate: Gate
    responses: KeptResponses
    strict: bool = False
    notices: Notices = field(default_factory=Notices)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request in service.

    Attributes:
        request: the connection's request.
        body: the fields of the body, without the model.
        model: the model, held until the end of the answer.
        service: the server's models and rules.
        is_large: whether reading the body and its call belongs on a thread.
        echoes_much: whether an answer with parts of the body is made on a thread.
    """

    request: Request
    body: Fields
    model: ServedModel
    service: Service
    is_large: bool = False
    echoes_much: bool = False

    @property
    def limits(self) -> Limits:
        """The bounds on prompts and streams."""
        return self.service.limits

    async def read(self, reader: Callable[..., T], *facts: Any) -> T:
        """Return the request in the body by a reader, which takes the body and facts about the server.

        Raises:
            ApiError: the body is invalid.
        """
        if not self.is_large:
            return reader(self.body, *facts)
        return await on_thread(partial(reader, self.body, *facts))

    async def write(self, part: Callable[[], T]) -> T:
        """Return a part of the answer, which may repeat parts of the body."""
        return await on_thread(part) if self.echoes_much else part()

    async def reply(self, write: Callable[[], Any], size: int) -> ASGIApp:
        """Return the JSON response with a value.

        Args:
            write: returns the value.
            size: about the number of values in it.
        """
        if size < LARGE_ANSWER and not self.echoes_much:
            return reply(write())
        return await on_thread(lambda: large_reply(write()))

    async def admit(self) -> None:
        """Wait while the model is paused.

        Raises:
            ClientDisconnect: the client disconnects first.
        """
        gate, base = self.service.gate, self.model.base
        if gate.is_closed(base):
            await run_until_disconnect(self.request.receive, lambda: gate.wait(base))

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of work that generates no text; it waits while the model is paused.

        Raises:
            QueueFull: the session has no room for the work.
            ClientDisconnect: the client disconnects first; the work is then cancelled.
        """
        await self.admit()
        self.model.session.check_room()
        return await run_until_disconnect(self.request.receive, work)

    async def submit(self, call: Call) -> list[Handle]:
        """Submit a call to the model's session.

        Raises:
            ApiError: the session refuses the call.
            ClientDisconnect: the client disconnects while the model is paused.
        """
        if call.reports.explicit:
            check_explicit(call, self.limits.prompts)
        self.service.notices.log(self.body.notes)
        await self.admit()
        options = self.model.without_unread(call.options, strict=self.body.strict)
        try:
            if self.is_large:
                return await self._submit_on_thread(call, options)
            return await self.model.session.submit_all(call.prompt, n=call.n, adapter=self.model.adapter, **options)
        except RekindleError as error:
            fields = {"prompt": "prompt", **call.fields, "adapter": "model"}
            raise api_error_of(without_copies(error, call.copies), fields) from error

    async def _submit_on_thread(self, call: Call, options: Mapping[str, Any]) -> list[Handle]:
        """Submit a large call on a thread, which checks its parameters and parses its grammars."""
        session, handles = self.model.session, list[Handle]()

        def submit() -> None:
            handles.extend(session.submit_all_sync(call.prompt, n=call.n, adapter=self.model.adapter, **options))

        try:
            await on_thread(submit)
        except anyio.get_cancelled_exc_class():
            cancel(handles)
            raise
        return handles

    async def head(self, kind: str) -> Head:
        """Return the head of a new answer with the session's fingerprint, and `kind` as prefix of its id."""
        fingerprint = await run_sync(lambda: self.model.session.fingerprint)  # the first time, it reads files
        return Head.new(kind, self.model.name, fingerprint)

    def stream(
        self,
        handles: Sequence[Handle],
        call: Call,
        chunks: Chunks,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> ASGIApp:
        """Return the response with an answer in chunks; `settle` is awaited before the last ones are sent."""
        refine = partial(with_explicit_piece, self.model, call) if call.reports.explicit else None

        async def finish(generations: Sequence[Generation]) -> None:
            record(self.model.name, generations)
            if settle is not None:
                await settle()

        return EventStream(handles, chunks, call.fields, self.limits, finish, refine, ends_large=self.echoes_much)

    async def finish(
        self, handles: Sequence[Handle], call: Call, write: Callable[[Sequence[Generation]], dict[str, Any]]
    ) -> ASGIApp:
        """Wait for the end of all requests, and return the response with the complete answer.

        Raises:
            ApiError: a request fails.
            ClientDisconnect: the client disconnects first; the requests are then cancelled.
        """
        try:
            generations = await run_until_disconnect(self.request.receive, lambda: self._complete(handles, call))
        except RekindleError as error:
            raise api_error_of(error, call.fields) from error
        record(self.model.name, generations)
        return await self.reply(lambda: write(generations), sum(map(_size, generations)))

    async def _complete(self, handles: Sequence[Handle], call: Call) -> list[Generation]:
        generations = await wait_all(handles)
        return await with_explicit(self.model, call, generations) if call.reports.explicit else generations


def _size(generation: Generation) -> int:
    """Return about the number of values in an answer."""
    tokens = len(generation.prompt_token_ids) + len(generation.token_ids)
    alternatives = len(generation.logprobs or ()) + len(generation.prompt_logprobs or ())
    return tokens + ALTERNATIVES * alternatives


def check_type(request: Request) -> None:
    """Raise unless the header declares JSON, a type that pages of other sites cannot send without permission (CORS)."""
    kind = _type_of(request)
    if kind != JSON:
        message = f"the body must be of content type {JSON}, got {kind!r:.80}"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def check_origin(request: Request) -> None:
    """Check for a body of JSON by its header, or for a client other than a browser.

    The clients of some APIs give no content type, or another one. Browsers tell the origin of each page with a body.
    """
    kind = _type_of(request)
    if kind != JSON and not BROWSER_HEADERS.isdisjoint(request.headers):
        message = f"a page in a browser must send a body of content type {JSON}, got {kind!r:.80}"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def model_in(body: Fields, models: Models) -> str | None:
    """Take the model's name; None if absent."""
    return body.take("model", str)


async def open_first(name: str | None, body: Fields, models: Models) -> ASGIApp | None:
    """Return None, to open the model before the answer."""
    return None


def streams(body: Fields) -> bool:
    """Return True if a body asks for a stream."""
    return body.peek(("stream",)).get("stream") is True


@dataclass(frozen=True, slots=True)
class Convention:
    """The convention of an API for its bodies.

    Attributes:
        check: checks the headers of a request; raises ApiError.
        model_in: takes the name of one of the models out of a body; None for the only or the first model.
        early: answers a body, with the model's name, before the model opens; returns None to open it.
        streams: returns True for a body with a stream as its answer, without taking the field.
    """

    check: Callable[[Request], None] = check_type
    model_in: Callable[[Fields, Models], str | None] = model_in
    early: Callable[[str | None, Fields, Models], Awaitable[ASGIApp | None]] = open_first
    streams: Callable[[Fields], bool] = streams


class Endpoint:
    """ASGI app of a route with a model in the body.

    The model is held until the end of the answer, so that a server of several models does not close it earlier.

    Args:
        answer: the function for the answer.
        service: the server's models and rules.
        convention: the convention for the bodies; None for OpenAI's.
    """

    def __init__(
        self,
        answer: Callable[[Exchange], Awaitable[ASGIApp]],
        service: Service,
        convention: Convention | None = None,
    ):
        self.answer, self._service, self._convention = answer, service, convention or Convention()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive, send)
        service, convention = self._service, self._convention
        convention.check(request)
        data = await read_body(request, service.limits)
        parse = partial(parse_body, data, strict=service.strict)
        body = parse() if len(data) < LARGE else await on_thread(parse)
        echoes_much = len(data) >= LARGE
        is_large = echoes_much or bool(body.peek(("tools",)))  # tools may have grammars
        name = convention.model_in(body, service.models)
        if (early := await convention.early(name, body, service.models)) is not None:
            await early(scope, receive, send)
            return
        serve = partial(self._serve, request, body, name, is_large, echoes_much)
        await (KeepAlive(serve, service.limits) if convention.streams(body) else serve)(scope, receive, send)

    async def _serve(
        self,
        request: Request,
        body: Fields,
        name: str | None,
        is_large: bool,
        echoes_much: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a body by the model of a name."""
        use = self._service.models.use(name)
        async with AsyncExitStack() as uses:
            model = await run_until_disconnect(receive, lambda: uses.enter_async_context(use))
            response = await self.answer(Exchange(request, body, model, self._service, is_large, echoes_much))
            await response(scope, receive, send)


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: the body is too large or arrives too slowly.
    """
    size = 0
    pieces: list[bytes] = []
    with anyio.move_on_after(limits.body_seconds):
        async with aclosing(request.stream()) as stream:
            async for piece in stream:
                size += len(piece)
                if size > limits.body_bytes:
                    message = f"the body may have at most {limits.body_bytes} bytes"
                    raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
                pieces.append(piece)
        return b"".join(pieces)
    raise ApiError(HTTPStatus.REQUEST_TIMEOUT, f"the body must arrive within {limits.body_seconds:g} seconds")
