"""Endpoints of the API over a session."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from time import time
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rekindle.client.handle import Handle
from rekindle.core.errors import RekindleError
from rekindle.core.text.response import MessageForm
from rekindle.core.text.responses.formats import PLAIN, format_of
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError, api_error_of
from rekindle.server.guards import reply
from rekindle.server.limits import Limits
from rekindle.server.reading.call import Call
from rekindle.server.reading.chat import read_chat
from rekindle.server.reading.completion import read_completion
from rekindle.server.reading.fields import Fields, parse_body
from rekindle.server.reading.responses import read_response
from rekindle.server.reading.texts import TokenizeRequest, read_embedding, read_tokenize, tokens_of
from rekindle.server.session import ServedSession
from rekindle.server.streaming import EventStream, run_until_disconnect, wait_all
from rekindle.server.writing.chat import ChatChunks, chat_completion
from rekindle.server.writing.common import Head
from rekindle.server.writing.completion import CompletionChunks, completion
from rekindle.server.writing.responses import ResponseChunks, response
from rekindle.server.writing.texts import embeddings, model_card, tokens_object

T = TypeVar("T")

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus's text format."""


class Routes:
    """The endpoints over one session.

    Args:
        session: the session to serve.
        name: the model's name for clients.
        limits: the bounds on requests and streams.
    """

    def __init__(self, session: ServedSession, name: str, limits: Limits):
        self._session, self._name, self._limits = session, name, limits
        self._since = int(time())

    async def chat(self, request: Request) -> ASGIApp:
        """Serve POST /v1/chat/completions."""
        body, model = await self._body(request)
        api_request = read_chat(body, self._form)
        handles, head = await self._submit(api_request.call, model), Head.new("chatcmpl", model)
        if api_request.call.streaming is not None:
            chunks = ChatChunks(head, api_request, [handle.record for handle in handles])
            return EventStream(handles, chunks, api_request.call.fields, self._limits)
        return await self._finish(
            request, handles, api_request.call, lambda generations: chat_completion(head, generations, api_request)
        )

    async def response(self, request: Request) -> ASGIApp:
        """Serve POST /v1/responses."""
        body, model = await self._body(request)
        api_request = read_response(body, self._form)
        handles, head = await self._submit(api_request.call, model), Head.new("resp", model)
        if api_request.call.streaming is not None:
            return EventStream(handles, ResponseChunks(head, api_request), api_request.call.fields, self._limits)
        return await self._finish(
            request, handles, api_request.call, lambda generations: response(head, generations[0], api_request)
        )

    async def completion(self, request: Request) -> ASGIApp:
        """Serve POST /v1/completions."""
        body, model = await self._body(request)
        api_request = read_completion(body, self._limits.prompts)
        handles, head = await self._submit(api_request.call, model), Head.new("cmpl", model)
        decode = self._decode
        if api_request.call.streaming is not None:
            chunks = CompletionChunks(head, api_request, [handle.record for handle in handles], decode)
            return EventStream(handles, chunks, api_request.call.fields, self._limits)
        return await self._finish(
            request, handles, api_request.call, lambda generations: completion(head, generations, api_request, decode)
        )

    async def embeddings(self, request: Request) -> ASGIApp:
        """Serve POST /v1/embeddings."""
        body, model = await self._body(request)
        api_request = read_embedding(body, self._limits.prompts)
        all_strings = all(isinstance(text, str) for text in api_request.texts)
        mixed = not all_strings and any(isinstance(text, str) for text in api_request.texts)
        ids = await run_sync(self._all_ids, api_request.texts) if mixed else api_request.texts
        inputs: dict[str, Any] = {"texts": api_request.texts} if all_strings else {"token_ids": ids}
        self._session.check_room()
        vectors = await run_until_disconnect(
            request.receive,
            lambda: self._session.embed(
                **inputs,
                dimensions=api_request.dimensions,
                cache_salt=api_request.cache_salt,
                adapter=self._adapter(model),
                progress=False,
            ),
        )
        if vectors is None:
            return _send_nothing
        count = await run_sync(lambda: sum(self._length(text) for text in api_request.texts))
        return reply(embeddings(vectors, model, count, api_request.encoding))

    async def tokenize(self, request: Request) -> Response:
        """Serve POST /tokenize."""
        body, _ = await self._body(request)
        api_request = read_tokenize(body, self._form)
        tokens = await run_sync(self._tokens, api_request)
        texts = [self._session.decode([token]) for token in tokens] if api_request.with_texts else None
        return reply(tokens_object(tokens, self._longest, texts))

    async def detokenize(self, request: Request) -> Response:
        """Serve POST /detokenize."""
        body, _ = await self._body(request)
        tokens = tokens_of(body)
        return reply({"prompt": await run_sync(self._session.decode, tokens)})

    async def tokenizer_info(self, request: Request) -> Response:
        """Serve GET /tokenizer_info."""
        tokenizer = self._session.tokenizer
        if tokenizer is None:
            raise ApiError(HTTPStatus.NOT_FOUND, "the model has no tokenizer")
        return reply(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": tokenizer.bos_token,
                "eos_token": tokenizer.eos_token,
                "chat_template": tokenizer.chat_template,
                "vocab_size": tokenizer.vocab_size,
                "model_max_length": self._longest,
            }
        )

    async def models(self, request: Request) -> Response:
        """Serve GET /v1/models: the model, and its adapters."""
        names = [self._name, *(name for name in self._session.adapters if name != self._name)]
        return reply({"object": "list", "data": [self._card(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Serve GET /v1/models/NAME."""
        name = request.path_params["name"]
        self._check_name(name)
        return reply(self._card(name))

    async def health(self, request: Request) -> Response:
        """Serve GET /health: 200 while requests can be served."""
        if (error := self._session.error) is not None:
            raise api_error_of(error, {})
        if (stuck := self._session.stuck) is not None:
            raise ApiError(503, f"the engine is {stuck}")
        return reply({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Serve GET /metrics."""
        return PlainTextResponse(self._session.metrics_text(), headers={"content-type": METRICS_TYPE})

    @property
    def _longest(self) -> int:
        longest = self._session.settings.max_context
        assert longest is not None, "set when the session opened"
        return longest

    @property
    def _form(self) -> MessageForm:
        tokenizer = self._session.tokenizer
        return (PLAIN if tokenizer is None else format_of(tokenizer)).form

    def _card(self, name: str) -> dict[str, Any]:
        parent = None if name == self._name else self._name
        return model_card(name, self._since, self._longest, parent)

    async def _body(self, request: Request) -> tuple[Fields, str]:
        """Read the body, and check its content type and its model; return it without the model, and the model's name.

        The name is the model's for clients, or an adapter's.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other sites' pages cannot send this type without permission (CORS)
            raise ApiError(415, f"the body must be of content type application/json, got {kind!r:.80}")
        body = parse_body(await self._read(request))
        model = body.take("model", str)
        if model is not None:
            self._check_name(model)
        return body, model or self._name

    async def _read(self, request: Request) -> bytes:
        most, size = self._limits.body_bytes, 0
        pieces: list[bytes] = []
        with anyio.move_on_after(self._limits.body_seconds):
            async with aclosing(request.stream()) as stream:
                async for piece in stream:
                    size += len(piece)
                    if size > most:
                        raise ApiError(413, f"the body may have at most {most} bytes")
                    pieces.append(piece)
            return b"".join(pieces)
        raise ApiError(408, f"the body must arrive within {self._limits.body_seconds:g} seconds")

    def _check_name(self, model: str) -> None:
        if model != self._name and model not in self._session.adapters:
            names = ", ".join(map(repr, [self._name, *self._session.adapters]))
            message = f"there is no model {model!r:.200}; this server has {names}"
            raise ApiError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    def _adapter(self, model: str) -> str | None:
        return None if model == self._name else model

    async def _submit(self, call: Call, model: str) -> list[Handle]:
        adapter = self._adapter(model)
        try:
            return await self._session.submit_all(call.prompt, n=call.n, adapter=adapter, **call.options)
        except RekindleError as error:
            raise api_error_of(error, {**call.fields, "adapter": "model"}) from error

    async def _finish(
        self,
        request: Request,
        handles: Sequence[Handle],
        call: Call,
        write: Callable[[Sequence[Generation]], dict[str, Any]],
    ) -> ASGIApp:
        """Wait until all requests have ended, and return the complete answer."""
        try:
            generations = await run_until_disconnect(request.receive, lambda: wait_all(handles))
        except RekindleError as error:
            raise api_error_of(error, call.fields) from error
        return _send_nothing if generations is None else reply(write(generations))

    def _tokens(self, api_request: TokenizeRequest) -> Sequence[int]:
        text = api_request.text
        if text is None:
            assert api_request.messages is not None, "a request has text or messages"
            text = self._session.render(api_request.messages, **api_request.options)
        if self._session.tokenizer is None or not api_request.special:
            return self._session.encode(text)
        return self._session.tokenizer.encode(text)

    def _all_ids(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        tokenizer = self._session.tokenizer
        if tokenizer is None:
            raise ApiError(HTTPStatus.BAD_REQUEST, "the model has no tokenizer: give token ids alone", param="input")
        return [tokenizer.encode(text) if isinstance(text, str) else text for text in texts]

    def _length(self, text: str | list[int]) -> int:
        return self._session.count_tokens(text) if isinstance(text, str) else len(text)

    def _decode(self, tokens: Sequence[int]) -> str:
        return "" if self._session.tokenizer is None else self._session.decode(tokens)


async def _send_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Send nothing, since the client has disconnected."""
