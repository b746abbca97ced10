"""Endpoints for judgements of texts: rankings, scores of pairs, classes and pooled hidden states."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from anyio.to_thread import run_sync
from starlette.types import ASGIApp

from rekindle.core.errors import InvalidBatch
from rekindle.results.scores.classes import Classification
from rekindle.results.scores.ranking import Content, Ranking
from rekindle.server.common.errors import ApiError, api_error_of
from rekindle.server.common.events import Head
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import reply
from rekindle.server.judging.answer import classes_object, numbers_of, pooled_object, ranking_object, scores_object
from rekindle.server.judging.body import (
    Lengths,
    PoolRequest,
    ScoreRequest,
    read_classes,
    read_pooling,
    read_ranking,
    read_score,
)
from rekindle.server.judging.encoding_routes import vectors_of, without_answers
from rekindle.server.models.session import ServedSession


async def rank(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/rerank, /v2/rerank and /rerank: documents by their relevance to a query."""
    request, session = await exchange.read(read_ranking, exchange.limits.prompts), exchange.model.session
    lengths = request.lengths
    query, *documents = await run_sync(_cut, session, [request.query, *request.documents], lengths)

    async def work() -> Ranking:
        ranking = await session.rerank(
            query, documents, adapter=exchange.model.adapter, progress=False, **request.options
        )
        return replace(ranking, documents=tuple(request.documents))  # without the cuts

    head = Head.new("rerank", exchange.model.name)
    is_pictured = not all(isinstance(each, str) for each in (request.query, *request.documents))
    return reply(ranking_object(head, await exchange.run(work, is_pictured=is_pictured), request))


async def score_pairs(exchange: Exchange) -> ASGIApp:
    """Serve POST /score and /v1/score: the relevance of each document to its query."""
    request, session = await exchange.read(read_score, exchange.limits.prompts), exchange.model.session
    by_query: dict[str | int, list[int]] = {}
    for index, (query, _) in enumerate(request.pairs):
        by_query.setdefault(query if isinstance(query, str) else id(query), []).append(index)

    async def work() -> tuple[list[float], int]:
        scores, tokens = [0.0] * len(request.pairs), 0
        for places in by_query.values():
            texts = [request.pairs[places[0]][0], *(request.pairs[place][1] for place in places)]
            cut_query, *documents = await run_sync(_cut, session, texts, request.lengths)
            try:
                ranking = await session.rerank(
                    cut_query, documents, adapter=exchange.model.adapter, progress=False, **request.options
                )
            except InvalidBatch as error:
                raise _of_pairs(error, places, request) from error
            tokens += ranking.prompt_tokens
            for place, score in zip(places, ranking.scores, strict=True):
                scores[place] = score
        return scores, tokens

    head = Head.new("score", exchange.model.name)
    is_pictured = not all(isinstance(each, str) for pair in request.pairs for each in pair)
    return reply(scores_object(head, *await exchange.run(work, is_pictured=is_pictured)))


def _of_pairs(error: InvalidBatch, places: Sequence[int], request: ScoreRequest) -> ApiError:
    """Return the API error for the pairs of one query, which are named by their places in the body."""
    first, second = request.fields
    queries = error.total - len(places)  # 1 if the query is a prompt of its own, before the documents
    if queries and 0 in error.errors:
        bad, field, total = {places[0]: error.errors[0]}, first, len({query for query, _ in request.pairs})
    else:
        bad = {places[index - queries]: each for index, each in error.errors.items()}
        field, total = second, len(request.pairs)
    return api_error_of(InvalidBatch(str(error), bad, total), {"prompt": field})


async def classify(exchange: Exchange) -> ASGIApp:
    """Serve POST /classify and /v1/classify: the classes of texts."""
    request = await exchange.read(read_classes, exchange.limits.prompts, exchange.model.form)
    head = Head.new("classify", exchange.model.name)
    classes, tokens = await exchange.run(lambda: _classes(exchange, request))
    return reply(classes_object(head, classes, tokens, activation=request.activation))


async def pool(exchange: Exchange) -> ASGIApp:
    """Serve POST /pooling and /v1/pooling: embeddings, or the outputs of a classification head."""
    request, session = (
        await exchange.read(read_pooling, exchange.limits.prompts, exchange.model.form),
        exchange.model.session,
    )
    head = Head.new("pool", exchange.model.name)
    task = request.task or ("classify" if session.labels is not None else "embed")

    async def work() -> tuple[Any, int]:
        if task == "classify":
            classes, tokens = await _classes(exchange, request)
            return [np.array(numbers_of(each, request.activation), np.float32) for each in classes], tokens
        return await vectors_of(exchange, request, normalize=request.activation)

    if task == "classify" and request.dimensions is not None:
        exchange.body.refuse("dimensions", "applies to embeddings only")
    numbers = await exchange.run(work, is_pictured=request.inputs.is_pictured)
    return reply(pooled_object(head, *numbers, encoding=request.encoding))


async def _classes(exchange: Exchange, request: PoolRequest) -> tuple[list[Classification], int]:
    classify = partial(exchange.model.session.classify, cache_salt=request.cache_salt)
    return await without_answers(exchange, request.inputs, classify)


def _cut(session: ServedSession, texts: Sequence[Content], lengths: Lengths) -> list[Content]:
    """Return a query and documents without their tokens above the bounds."""
    bounds = (lengths.query, *(lengths.document for _ in texts[1:]))
    return [
        _first(session, text, bound) if bound is not None and isinstance(text, str) else text
        for text, bound in zip(texts, bounds, strict=True)
    ]


def _first(session: ServedSession, text: str, count: int) -> str:
    if session.tokenizer is not None:
        text = session.tokenizer.near(text, count, at_end=False)
    tokens = session.encode(text)
    return text if len(tokens) <= count else session.decode(tokens[:count])
