"""Endpoints in the form of text-embeddings-inference (TEI), for its clients."""

from functools import partial
from typing import Any

from starlette.types import ASGIApp

from rekindle.core.errors import RekindleError
from rekindle.results.scores.classes import Classification
from rekindle.server.common.errors import api_error_of
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import reply
from rekindle.server.judging.encoding_routes import without_answers
from rekindle.server.judging.tei_body import read_embed, read_predict


async def embed(exchange: Exchange) -> ASGIApp:
    """Serve POST /embed: vectors of texts, as a list of lists of numbers."""
    request = await exchange.read(read_embed, exchange.limits.prompts)
    options: dict[str, Any] = {"normalize": request.normalize, "dimensions": request.dimensions}
    if request.prompt_name is not None:
        options["instruction"] = request.prompt_name
    compute = partial(exchange.model.session.embed, **options)

    async def work() -> Any:
        vectors, _ = await without_answers(exchange, request.inputs, compute, embeds=True)
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


def _scores(classes: Classification, *, raw: bool) -> list[dict[str, Any]]:
    """Return the classes of a text with their scores, the likeliest first."""
    numbers = classes.logits if raw else classes.probabilities
    pairs = sorted(zip(classes.labels, numbers, strict=True), key=lambda pair: -pair[1])
    return [{"label": label, "score": score} for label, score in pairs]
