"""Endpoints without generation: embeddings and tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anyio.to_thread import run_sync
from starlette.types import ASGIApp

from rekindle.server.errors import ApiError
from rekindle.server.exchange import Exchange, send_nothing
from rekindle.server.guards import reply
from rekindle.server.reading.texts import TokenizeRequest, read_embedding, read_tokenize, tokens_of
from rekindle.server.session import ServedSession
from rekindle.server.streaming import run_until_disconnect
from rekindle.server.writing.texts import embeddings, tokens_object


async def create_embeddings(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/embeddings."""
    session = exchange.model.session
    request = read_embedding(exchange.body, exchange.limits.prompts)
    all_strings = all(isinstance(text, str) for text in request.texts)
    mixed = not all_strings and any(isinstance(text, str) for text in request.texts)
    ids = await run_sync(_all_ids, session, request.texts) if mixed else request.texts
    inputs: dict[str, Any] = {"texts": request.texts} if all_strings else {"token_ids": ids}
    session.check_room()
    vectors = await run_until_disconnect(
        exchange.request.receive,
        lambda: session.embed(
            **inputs,
            dimensions=request.dimensions,
            cache_salt=request.cache_salt,
            adapter=exchange.model.adapter,
            progress=False,
        ),
    )
    if vectors is None:
        return send_nothing
    count = await run_sync(lambda: sum(_length(session, text) for text in request.texts))
    return reply(embeddings(vectors, exchange.model.name, count, request.encoding))


async def tokenize(exchange: Exchange) -> ASGIApp:
    """Serve POST /tokenize."""
    model = exchange.model
    request = read_tokenize(exchange.body, model.form)
    options = model.without_unread(request.options, strict=exchange.body.strict)
    tokens = await run_sync(_tokens, model.session, replace(request, options=options))
    texts = [model.session.decode([token]) for token in tokens] if request.with_texts else None
    return reply(tokens_object(tokens, model.longest, texts))


async def detokenize(exchange: Exchange) -> ASGIApp:
    """Serve POST /detokenize."""
    tokens = tokens_of(exchange.body)
    return reply({"prompt": await run_sync(exchange.model.session.decode, tokens)})


def _tokens(session: ServedSession, request: TokenizeRequest) -> Sequence[int]:
    text = request.text
    if text is None:
        assert request.messages is not None, "a request has text or messages"
        text = session.render(request.messages, **request.options)
    if session.tokenizer is None or not request.special:
        return session.encode(text)
    return session.tokenizer.encode(text)


def _all_ids(session: ServedSession, texts: Sequence[str | list[int]]) -> list[list[int]]:
    if session.tokenizer is None:
        raise ApiError(400, "the model has no tokenizer: give token ids alone", param="input")
    return [session.tokenizer.encode(text) if isinstance(text, str) else text for text in texts]


def _length(session: ServedSession, text: str | list[int]) -> int:
    return session.count_tokens(text) if isinstance(text, str) else len(text)
