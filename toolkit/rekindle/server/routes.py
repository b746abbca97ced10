"""The routes: what each path reads, asks of the session, and writes."""

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
from rekindle.server.guards import reply
from rekindle.server.limits import Limits
from rekindle.server.reading.call import Call
from rekindle.server.reading.chat import chat_call
from rekindle.server.reading.completion import completion_call
from rekindle.server.reading.fields import Fields, parsed
from rekindle.server.reading.responses import response_call
from rekindle.server.reading.texts import TokenizeCall, embedding_call, tokenize_call, tokens_of
from rekindle.server.refused import Refused, refused
from rekindle.server.served import Served
from rekindle.server.streaming import EventStream, ended, unless_gone
from rekindle.server.writing.chat import ChatChunks, chat_completion
from rekindle.server.writing.common import Head
from rekindle.server.writing.completion import CompletionChunks, completion
from rekindle.server.writing.responses import ResponseChunks, response
from rekindle.server.writing.texts import embeddings, model_card, tokenized

T = TypeVar("T")

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of Prometheus's text form."""


class Routes:
    """The endpoints over one session.

    Args:
        name: what clients call the model.
    """

    def __init__(self, session: Served, name: str, limits: Limits):
        self._session, self._name, self._limits = session, name, limits
        self._since = int(time())

    async def chat(self, request: Request) -> ASGIApp:
        """Serve POST /v1/chat/completions."""
        asked = chat_call(await self._body(request), self._form)
        handles, head = await self._submitted(asked.call), Head.new("chatcmpl", self._name)
        if asked.call.streaming is not None:
            chunks = ChatChunks(head, asked, [handle.record for handle in handles])
            return EventStream(handles, chunks, asked.call.fields, self._limits)
        return await self._whole(request, handles, asked.call, lambda made: chat_completion(head, made, asked))

    async def response(self, request: Request) -> ASGIApp:
        """Serve POST /v1/responses."""
        asked = response_call(await self._body(request), self._form)
        handles, head = await self._submitted(asked.call), Head.new("resp", self._name)
        if asked.call.streaming is not None:
            return EventStream(handles, ResponseChunks(head, asked), asked.call.fields, self._limits)
        return await self._whole(request, handles, asked.call, lambda made: response(head, made[0], asked))

    async def completion(self, request: Request) -> ASGIApp:
        """Serve POST /v1/completions."""
        asked = completion_call(await self._body(request), self._limits.prompts)
        handles, head = await self._submitted(asked.call), Head.new("cmpl", self._name)
        decode = self._decoded
        if asked.call.streaming is not None:
            chunks = CompletionChunks(head, asked, [handle.record for handle in handles], decode)
            return EventStream(handles, chunks, asked.call.fields, self._limits)
        return await self._whole(request, handles, asked.call, lambda made: completion(head, made, asked, decode))

    async def embeddings(self, request: Request) -> ASGIApp:
        """Serve POST /v1/embeddings."""
        asked = embedding_call(await self._body(request), self._limits.prompts)
        alike = all(isinstance(text, str) for text in asked.texts)
        mixed = not alike and any(isinstance(text, str) for text in asked.texts)
        ids = await run_sync(self._all_ids, asked.texts) if mixed else asked.texts
        given: dict[str, Any] = {"texts": asked.texts} if alike else {"token_ids": ids}
        self._session.check_room()
        made = await unless_gone(
            request.receive,
            lambda: self._session.embed(
                **given, dimensions=asked.dimensions, cache_salt=asked.cache_salt, progress=False
            ),
        )
        if made is None:
            return _nothing
        count = await run_sync(lambda: sum(self._length(text) for text in asked.texts))
        return reply(embeddings(made, self._name, count, asked.written))

    async def tokenize(self, request: Request) -> Response:
        """Serve POST /tokenize."""
        asked = tokenize_call(await self._body(request), self._form)
        tokens = await run_sync(self._tokens, asked)
        texts = [self._session.decode([token]) for token in tokens] if asked.shown else None
        return reply(tokenized(tokens, self._longest, texts))

    async def detokenize(self, request: Request) -> Response:
        """Serve POST /detokenize."""
        tokens = tokens_of(await self._body(request))
        return reply({"prompt": await run_sync(self._session.decode, tokens)})

    async def tokenizer_info(self, request: Request) -> Response:
        """Serve GET /tokenizer_info."""
        tokenizer = self._session.tokenizer
        if tokenizer is None:
            raise Refused(HTTPStatus.NOT_FOUND, "the model has no tokenizer")
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
        """Serve GET /v1/models."""
        return reply({"object": "list", "data": [model_card(self._name, self._since, self._longest)]})

    async def model(self, request: Request) -> Response:
        """Serve GET /v1/models/NAME."""
        self._check_name(request.path_params["name"])
        return reply(model_card(self._name, self._since, self._longest))

    async def health(self, request: Request) -> Response:
        """Serve GET /health: 200 as long as requests can be served."""
        if (error := self._session.error) is not None:
            raise refused(error, {})
        if (stuck := self._session.stuck) is not None:
            raise Refused(503, f"the engine is {stuck}")
        return reply({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Serve GET /metrics."""
        return PlainTextResponse(self._session.metrics_text(), headers={"content-type": METRICS_TYPE})

    @property
    def _longest(self) -> int:
        longest = self._session.settings.max_context
        assert longest is not None, "a session has chosen it"
        return longest

    @property
    def _form(self) -> MessageForm:
        tokenizer = self._session.tokenizer
        return (PLAIN if tokenizer is None else format_of(tokenizer)).form

    async def _body(self, request: Request) -> Fields:
        """Read the body, and check that it is for this model."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which a page of another site cannot send without being allowed to
            raise Refused(415, f"the body must be of content type application/json, got {kind!r:.80}")
        body = parsed(await self._read(request))
        named = body.take("model", str)
        if named is not None:
            self._check_name(named)
        return body

    async def _read(self, request: Request) -> bytes:
        most, size = self._limits.body_bytes, 0
        pieces: list[bytes] = []
        with anyio.move_on_after(self._limits.body_seconds):
            async with aclosing(request.stream()) as stream:
                async for piece in stream:
                    size += len(piece)
                    if size > most:
                        raise Refused(413, f"the body may have at most {most} bytes")
                    pieces.append(piece)
            return b"".join(pieces)
        raise Refused(408, f"the body has to come within {self._limits.body_seconds:g} seconds")

    def _check_name(self, named: str) -> None:
        if named != self._name:
            message = f"there is no model {named!r:.200}; this server has {self._name!r}"
            raise Refused(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    async def _submitted(self, call: Call) -> list[Handle]:
        try:
            return await self._session.submit_all(call.prompt, n=call.n, **call.ask)
        except RekindleError as error:
            raise refused(error, call.fields) from error

    async def _whole(
        self,
        request: Request,
        handles: Sequence[Handle],
        call: Call,
        written: Callable[[Sequence[Generation]], dict[str, Any]],
    ) -> ASGIApp:
        """Return an answer once all requests have ended."""
        try:
            made = await unless_gone(request.receive, lambda: ended(handles))
        except RekindleError as error:
            raise refused(error, call.fields) from error
        return _nothing if made is None else reply(written(made))

    def _tokens(self, asked: TokenizeCall) -> Sequence[int]:
        text = asked.text
        if text is None:
            assert asked.messages is not None, "one of the two was given"
            text = self._session.render(asked.messages, **asked.options)
        if self._session.tokenizer is None or not asked.special:
            return self._session.encode(text)
        return self._session.tokenizer.encode(text)

    def _all_ids(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        tokenizer = self._session.tokenizer
        if tokenizer is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "the model has no tokenizer: give token ids alone", param="input")
        return [tokenizer.encode(text) if isinstance(text, str) else text for text in texts]

    def _length(self, text: str | list[int]) -> int:
        return self._session.count_tokens(text) if isinstance(text, str) else len(text)

    def _decoded(self, tokens: Sequence[int]) -> str:
        return "" if self._session.tokenizer is None else self._session.decode(tokens)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing, since nobody is there any more."""
