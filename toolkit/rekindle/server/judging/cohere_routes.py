"""Endpoints for vectors in the form of Cohere's API, for its clients. Its rankings are among the judgements."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from starlette.types import ASGIApp

from rekindle.server.common.events import Head
from rekindle.server.http.exchange import Exchange
from rekindle.server.judging.cohere_body import CohereRequest, VectorType, read_cohere
from rekindle.server.judging.encoding_answer import vector_object
from rekindle.server.judging.encoding_routes import named_prompt, vectors_of

_BYTE: Final = 128
"""Half of the values of a byte, between the whole numbers with and without sign."""


async def embed(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/embed: vectors of texts."""
    return await _embed(exchange, version=1)


async def embed_by_type(exchange: Exchange) -> ASGIApp:
    """Serve POST /v2/embed: vectors of texts, by type."""
    return await _embed(exchange, version=2)


async def _embed(exchange: Exchange, version: int) -> ASGIApp:
    request = await exchange.read(partial(read_cohere, version=version), exchange.limits.prompts)
    prompt = named_prompt(exchange.model.session, request.embedding.prompts)
    vectors, count = await exchange.run(partial(vectors_of, exchange, request.embedding, prompt=prompt))
    head = Head.new("embed", exchange.model.name)
    return await exchange.reply(lambda: _answer(head, request, vectors, count, version), vectors.size)


def _answer(head: Head, request: CohereRequest, vectors: Any, tokens: int, version: int) -> dict[str, Any]:
    """Return vectors, (texts, dimensions) float32, in the form of the API's version."""
    meta = {"api_version": {"version": str(version)}, "billed_units": {"input_tokens": tokens}}
    answer = {"id": head.id, "texts": list(request.embedding.inputs.prompts), "meta": meta}
    if not request.types:
        return {**answer, "response_type": "embeddings_floats", "embeddings": vectors.tolist()}
    by_type = {each: _in_type(vectors, each) for each in request.types}
    return {**answer, "response_type": "embeddings_by_type", "embeddings": by_type}


def _in_type(vectors: np.ndarray[Any, np.dtype[np.float32]], kind: VectorType) -> Sequence[Any]:
    """Return vectors as numbers, as the base64 of their bytes, or as their signs: eight in a whole number."""
    if kind == "float" or kind == "base64":
        return [vector_object(vector, kind) for vector in vectors]
    signs = np.packbits(vectors > 0, axis=1).astype(np.int16)
    return list((signs if kind == "ubinary" else signs - _BYTE).tolist())
