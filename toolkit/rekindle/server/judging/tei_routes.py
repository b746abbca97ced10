"""Endpoints in the form of text-embeddings-inference (TEI), for its clients."""

from functools import partial
from typing import Any

from starlette.types import ASGIApp

from rekindle.core.errors import RekindleError
from rekindle.results.scores.classes import Classification
from rekindle.server.common.errors import api_error_of
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import reply
from rekindle.server.judging.encoding_body import EncodingInputs
from rekindle.server.judging.encoding_routes import without_answers
from rekindle.server.judging.routes import rank
from rekindle.server.judging.tei_body import read_embed, read_predict, read_similarity


async def embed(exchange: Exchange) -> ASGIApp:
    """Serve POST /embed: vectors of texts, as a list of lists of numbers."""
    request = await exchange.read(read_embed, exchange.limits.prompts)
    options: dict[str, Any] = {"normalize": request.normalize, "dimensions": request.dimensions}
    compute = partial(exchange.model.session.embed, **options)

    async def work() -> Any:
        prompt = request.prompt_name
        vectors, _ = await without_answers(exchange, request.inputs, compute, embeds=True, prompt=prompt)
        return vectors

    vectors = await exchange.run(work)
    return await exchange.reply(vectors.tolist, vectors.size)


async def predict(exchange: Exchange) -> ASGIApp:
    """Serve POST /predict: the classes of texts or pairs with their scores, the likeliest first."""
    request = await exchange.read(read_predict, exchange.limits.prompts)

    async def work() -> list[Classification]:
        options = {} if request.seconds is None else {"second": list(request.seconds)}
        try:
            classes: list[Classification] = await exchange.model.session.classify(
                list(request.firsts), adapter=exchange.model.adapter, progress=False, **options
            )
        except RekindleError as error:
            raise api_error_of(error, dict.fromkeys(("prompt", "texts"), "inputs")) from error
        return classes

    rows = [_scores(each, raw=request.raw) for each in await exchange.run(work)]
    return reply(rows if request.is_list else rows[0])


async def similarity(exchange: Exchange) -> ASGIApp:
    """Serve POST /similarity: the cosine of each text's vector and that of another text."""
    request = await exchange.read(read_similarity, exchange.limits.prompts)
    compute, inputs = (
        partial(exchange.model.session.embed, normalize=True),
        EncodingInputs(request.texts, name="inputs"),
    )

    async def work() -> Any:
        vectors, _ = await without_answers(exchange, inputs, compute, embeds=True, prompt=request.prompt_name)
        return vectors

    vectors = await exchange.run(work)
    return reply((vectors[1:] @ vectors[0]).tolist())


async def by_task(exchange: Exchange) -> ASGIApp:
    """Serve POST /: a ranking, similarities, or classes or vectors of texts, by the body and the model."""
    fields = exchange.body.peek(("texts", "inputs"))
    if "texts" in fields:
        return await rank(exchange)
    if isinstance(fields.get("inputs"), dict):
        return await similarity(exchange)
    return await (embed if exchange.model.session.labels is None else predict)(exchange)


def _scores(classes: Classification, *, raw: bool) -> list[dict[str, Any]]:
    """Return the classes of a text with their scores, the likeliest first."""
    numbers = classes.logits if raw else classes.probabilities
    pairs = sorted(zip(classes.labels, numbers, strict=True), key=lambda pair: -pair[1])
    return [{"label": label, "score": score} for label, score in pairs]
