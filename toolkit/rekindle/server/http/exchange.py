"""One request and its answer: the body, the model, the connection."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any, Final, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.types import ASGIApp

from rekindle.client.handle import Handle
from rekindle.core.errors import RekindleError, RequestCancelled
from rekindle.results.generation import Generation
from rekindle.server.common.call import Call
from rekindle.server.common.captures import FIELD as CAPTURE
from rekindle.server.common.captures import check_capture
from rekindle.server.common.errors import api_error_of, without_copies
from rekindle.server.common.events import Chunks, Head
from rekindle.server.common.fields import Fields
from rekindle.server.http.guards import large_reply, reply
from rekindle.server.http.limits import Limits, on_thread
from rekindle.server.http.shares import PICTURED_AT_ONCE, Shares, client_of
from rekindle.server.http.streaming import EventStream, cancel, run_until_disconnect, wait_all
from rekindle.server.models.gate import Gate
from rekindle.server.models.served import Models, ServedModel
from rekindle.server.tracing.log import Notices
from rekindle.server.tracing.spans import record

T = TypeVar("T")
LARGE_ANSWER: Final = 10_000
"""Values in an answer from which on its writing takes more than a few milliseconds."""
ALTERNATIVES: Final = 8
"""About the values beside a token with log-probabilities."""


@dataclass(frozen=True, slots=True)
class Service:
    """A server's models and rules.

    Attributes:
        models: the models.
        limits: the bounds on requests and streams.
        gate: the gate before the models.
        strict: whether hints without effect on the model are refused.
        notices: the notes about parts of bodies without effect.
        bodies: the bytes of large bodies in service.
        preparing: the places for the preparation of requests with images; one client has all but one.
    """

    models: Models
    limits: Limits
    gate: Gate
    strict: bool = False
    notices: Notices = field(default_factory=Notices)
    bodies: Shares = field(init=False)
    preparing: Shares = field(default_factory=lambda: Shares(PICTURED_AT_ONCE, PICTURED_AT_ONCE - 1))

    def __post_init__(self) -> None:
        """Share the bytes of the limits."""
        most = self.limits.bodies_bytes
        object.__setattr__(self, "bodies", Shares(most, max(most // 2, min(most, self.limits.body_bytes))))


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
        work = partial(reader, self.body, *facts)
        result = await on_thread(work) if self.is_large else work()
        self.service.notices.log(self.body.notes)
        return result

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

    async def run(self, work: Callable[[], Awaitable[T]], *, is_pictured: bool = False) -> T:
        """Return the result of work that generates no text; it waits while the model is paused.

        Args:
            work: the work.
            is_pictured: whether it decodes images.

        Raises:
            QueueFull: the session has no room for the work.
            ClientDisconnect: the client disconnects first; the work is then cancelled.
        """
        await self.admit()
        self.model.session.check_room()
        return await run_until_disconnect(self.request.receive, partial(self._in_turn, work, is_pictured=is_pictured))

    async def _in_turn(self, work: Callable[[], Awaitable[T]], *, is_pictured: bool) -> T:
        """Return the result of work, which waits for the client's turn if it decodes images."""
        if not is_pictured:
            return await work()
        async with self.service.preparing.take(client_of(self.request)):
            return await work()

    async def submit(self, call: Call) -> list[Handle]:
        """Submit a call to the model's session.

        Raises:
            ApiError: the session refuses the call.
            ClientDisconnect: the client disconnects first; the checks of the call and its images then end.
        """
        if call.options.get(CAPTURE) is not None:
            check_capture(call)
        await self.admit()
        options = self.model.without_unread(call.options, strict=self.body.strict)
        handles: list[Handle] = []

        async def work() -> None:
            handles.extend(await self._submit(call, options))

        try:
            await run_until_disconnect(self.request.receive, work)
            return handles
        except anyio.get_cancelled_exc_class():
            cancel(handles)  # the call was submitted, and its answer has no taker
            raise
        except RekindleError as error:
            fields = {"prompt": "prompt", **call.fields, "adapter": "model"}
            raise api_error_of(without_copies(error, call.copies), fields) from error

    async def _submit(self, call: Call, options: Mapping[str, Any]) -> list[Handle]:
        """Submit a call, in the client's turn if it has images."""
        is_pictured = self.model.session.takes_images and await self.write(lambda: call.is_pictured)
        submit = self._submit_on_thread if self.is_large else self._submit_here
        return await self._in_turn(lambda: submit(call, options), is_pictured=is_pictured)

    async def _submit_here(self, call: Call, options: Mapping[str, Any]) -> list[Handle]:
        return await self.model.session.submit_all(call.prompt, n=call.n, adapter=self.model.adapter, **options)

    async def _submit_on_thread(self, call: Call, options: Mapping[str, Any]) -> list[Handle]:
        """Submit a large call on a thread, which checks its parameters and parses its grammars."""
        session, handles, departure = self.model.session, list[Handle](), Event()

        def reason() -> RequestCancelled | None:
            return RequestCancelled("the client disconnected") if departure.is_set() else None

        def submit() -> None:
            handles.extend(
                session.submit_all_unless(reason, call.prompt, n=call.n, adapter=self.model.adapter, **options)
            )
            if departure.is_set():
                cancel(handles)

        try:
            await on_thread(submit, may_leave=True)
        except anyio.get_cancelled_exc_class():
            departure.set()
            cancel(handles)  # those before; the thread cancels those after
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

        async def finish(generations: Sequence[Generation]) -> None:
            record(self.model.name, generations)
            if settle is not None:
                await settle()

        return EventStream(handles, chunks, call.fields, self.limits, finish, ends_large=self.echoes_much)

    async def finish(
        self, handles: Sequence[Handle], call: Call, write: Callable[[Sequence[Generation]], dict[str, Any]]
    ) -> ASGIApp:
        """Wait for the end of all requests, and return the response with the complete answer.

        Raises:
            ApiError: a request fails.
            ClientDisconnect: the client disconnects first; the requests are then cancelled.
        """
        try:
            generations = await run_until_disconnect(self.request.receive, lambda: wait_all(handles))
        except RekindleError as error:
            raise api_error_of(error, call.fields) from error
        record(self.model.name, generations)
        return await self.reply(lambda: write(generations), sum(map(_size, generations)))


def _size(generation: Generation) -> int:
    """Return about the number of values in an answer."""
    tokens = len(generation.prompt_token_ids) + len(generation.token_ids)
    alternatives = len(generation.logprobs or ()) + len(generation.prompt_logprobs or ())
    vectors = 0 if generation.activations is None else generation.activations.embedding.size
    return tokens + ALTERNATIVES * alternatives + vectors
