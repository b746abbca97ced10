"""Endpoints about the server: its models, its health, its metrics."""

from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rekindle.server.admin.metrics import JoinedMetrics
from rekindle.server.admin.openapi import openapi
from rekindle.server.anthropic.answer import model_object, models_page
from rekindle.server.common.errors import ApiError, api_error_of, unavailable
from rekindle.server.http.guards import reply
from rekindle.server.http.query import Query, reads
from rekindle.server.models.served import ModelCard, Models, card_of, only_base

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus's text format."""


class StateRoutes:
    """The endpoints about the models of a server.

    Args:
        models: the models.
        needs_key: whether requests need a key.
        most_prompts: the most texts of a request.
    """

    def __init__(self, models: Models, *, needs_key: bool, most_prompts: int):
        self._models, self._needs_key, self._most_prompts = models, needs_key, most_prompts

    async def models(self, request: Request) -> Response:
        """Serve GET /v1/models: the models, and their adapters."""
        cards = self._models.cards()
        if _is_anthropic(request):
            return reply(models_page([model_object(card.name, card.since, card.longest) for card in cards]))
        return reply({"object": "list", "data": [_card(card) for card in cards]})

    async def model(self, request: Request) -> Response:
        """Serve GET /v1/models/NAME: one model."""
        card = card_of(self._models.cards(), request.path_params["name"])
        if _is_anthropic(request):
            return reply(model_object(card.name, card.since, card.longest))
        return reply(_card(card))

    async def version(self, request: Request) -> Response:
        """Serve GET /version: the version of the server."""
        return reply({"version": _version()})

    @reads(Query("model"))
    async def info(self, request: Request) -> Response:
        """Serve GET /info: the model and its task, in the form of text-embeddings-inference."""
        name = request.query_params.get("model")
        async with self._models.use(only_base(self._models) if name is None else name) as model:
            session, longest = model.session, model.longest
            if (tokenizer := session.tokenizer) is not None and tokenizer.longest is not None:
                longest = min(longest, tokenizer.longest)
            return reply(
                {
                    "model_id": model.base,
                    "model_sha": session.model.digest or None,
                    "model_dtype": session.model.numbers,
                    "model_type": _task(session.labels),
                    "max_concurrent_requests": session.settings.max_running,
                    "max_input_length": longest,
                    "max_batch_tokens": session.settings.max_prefill_tokens,
                    "max_client_batch_size": self._most_prompts,
                    "auto_truncate": tokenizer is not None and tokenizer.longest is not None,
                    "version": _version(),
                }
            )

    async def describe(self, request: Request) -> Response:
        """Serve GET /openapi.json: this description."""
        return reply(openapi(request.app.routes, _version(), needs_key=self._needs_key))

    @reads(Query("model"))
    async def tokenizer_info(self, request: Request) -> Response:
        """Serve GET /tokenizer_info: the special tokens and the chat template."""
        name = request.query_params.get("model")
        async with self._models.use(only_base(self._models) if name is None else name) as model:
            tokenizer = model.session.tokenizer
            if tokenizer is None:
                raise ApiError(HTTPStatus.NOT_FOUND, "the model has no tokenizer")
            return reply(
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "bos_token": tokenizer.bos_token,
                    "eos_token": tokenizer.eos_token,
                    "chat_template": tokenizer.chat_template,
                    "vocab_size": tokenizer.vocab_size,
                    "model_max_length": model.longest,
                }
            )

    async def health(self, request: Request) -> Response:
        """Serve GET /health: 200 while requests can be served."""
        for model in self._models.open_models():
            if (error := model.session.error) is not None:
                raise api_error_of(error, {})
            if (stuck := model.session.stuck) is not None:
                raise unavailable(f"the engine is {stuck}; if its device stays silent, start the server again")
        return reply({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Serve GET /metrics: counters and histograms for Prometheus."""
        texts = {model.base: model.session.metrics_text() for model in self._models.open_models()}
        text = JoinedMetrics(texts).text() if len(self._models.bases) > 1 else "".join(texts.values())
        return PlainTextResponse(text, headers={"content-type": METRICS_TYPE})


def _is_anthropic(request: Request) -> bool:
    """Return True for a client of Anthropic's API, whose list of models has the path of OpenAI's."""
    return "anthropic-version" in request.headers


def _task(labels: Sequence[str] | None) -> dict[str, Any]:
    """Return the task of a model by the classes of its head: one class is a reranker's."""
    if labels is None:
        return {"embedding": {}}
    classes = {str(index): label for index, label in enumerate(labels)}
    names = {"id2label": classes, "label2id": {label: index for index, label in enumerate(labels)}}
    return {"reranker" if len(labels) == 1 else "classifier": names}


def _version() -> str:
    """Return the version of Rekindle; "unknown" if it is not installed."""
    try:
        return version("rekindle-llm")
    except PackageNotFoundError:
        return "unknown"


def _card(card: ModelCard) -> dict[str, Any]:
    """Return the object describing a name of a model or of its adapter, in the form of OpenAI's API."""
    head = {"id": card.name, "object": "model", "created": card.since, "owned_by": "rekindle"}
    head |= {"max_model_len": card.longest, "root": card.base}
    return head | {"parent": card.base} if card.is_adapter else head
