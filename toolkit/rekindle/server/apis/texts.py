"""Endpoints without generation: embeddings and tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anyio.to_thread import run_sync
from starlette.types import ASGIApp

from rekindle.server.errors import ApiError
from rekindle.server.exchange import Exchange, send_nothing
from rekindle.server.guards import reply
from rekindle.server.models.session import ServedSession
from rekindle.server.reading.texts import TokenizeRequest, read_embedding, read_tokenize, tokens_of
from rekindle.server.streaming import run_until_disconnect
from rekindle.server.writing.texts import embeddings, tokens_object


async def create_embeddings(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/embeddings: vectors of texts."""
    session = exchange.model.session
    request = read_embedding(exchange.body, exchange.limits.prompts)
    await exchange.admit()
    session.check_room()

    async def work() -> tuple[Any, int]:
        inputs, count = await run_sync(prompts_of, session, request.texts)
        vectors = await session.embed(
            **inputs,
            dimensions=request.dimensions,
            cache_salt=request.cache_salt,
            adapter=exchange.model.adapter,
            progress=False,
        )
        return vectors, count

    result = await run_until_disconnect(exchange.request.receive, work)
    if result is None:
        return send_nothing
    vectors, count = result
    return reply(embeddings(vectors, exchange.model.name, count, request.encoding))


async def tokenize(exchange: Exchange) -> ASGIApp:
    """Serve POST /tokenize: the tokens of a text or a conversation."""
    model = exchange.model
    request = read_tokenize(exchange.body, model.form)
    options = model.without_unread(request.options, strict=exchange.body.strict)
    tokens = await run_sync(_tokens, model.session, replace(request, options=options))
    texts = [model.session.decode([token]) for token in tokens] if request.with_texts else None
    return reply(tokens_object(tokens, model.longest, texts))


async def detokenize(exchange: Exchange) -> ASGIApp:
    """Serve POST /detokenize: the text of tokens."""
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


def prompts_of(session: ServedSession, inputs: Sequence[Any]) -> tuple[dict[str, Any], int]:
    """Return the keywords of a session call for several prompts, and the number of their tokens.

    Args:
        session: the session of the call.
        inputs: texts, lists of token ids or conversations. If texts and token ids are mixed, all become token ids.
    """
    if not any(map(_is_ids, inputs)):
        return {"texts": list(inputs)}, sum(session.count_tokens(each) for each in inputs)
    ids = [each if _is_ids(each) else _ids_of(session, each) for each in inputs]
    return {"token_ids": ids}, sum(map(len, ids))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], int)


def _ids_of(session: ServedSession, text: str) -> list[int]:
    if session.tokenizer is None:
        raise ApiError(400, "the model has no tokenizer: give token ids alone", param="input")
    return session.tokenizer.encode(text)
