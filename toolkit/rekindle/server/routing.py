"""The paths of a server."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from starlette.routing import Route
from starlette.types import ASGIApp

from rekindle.server.access import Access
from rekindle.server.apis import anthropic, judging, ollama, openai, responses, texts
from rekindle.server.apis.administration import Administration
from rekindle.server.apis.dashboard import DashboardRoutes
from rekindle.server.apis.state import StateRoutes
from rekindle.server.decisions import routes as decisions
from rekindle.server.exchange import Convention, Endpoint, Exchange, Service, check_origin

OLLAMA: Final = Convention(check_origin, ollama.model_in)
"""The convention of Ollama's API: many of its clients give no content type."""
OLLAMA_PROMPTS: Final[Mapping[str, Convention]] = {
    "/api/chat": Convention(check_origin, ollama.model_in, partial(ollama.unload, in_chat=True), ollama.streams),
    "/api/generate": Convention(check_origin, ollama.model_in, partial(ollama.unload, in_chat=False), ollama.streams),
}
"""The conventions of the paths for prompts. A body without a prompt may close its model, so it opens none."""
Answer = Callable[[Exchange], Awaitable[ASGIApp]]
ANSWERS: Final[Mapping[str, Answer]] = {
    "/v1/chat/completions": openai.create_chat_completion,
    "/v1/responses": responses.create_response,
    "/v1/responses/input_tokens": responses.count_input_tokens,
    "/v1/completions": openai.create_completion,
    "/v1/embeddings": texts.create_embeddings,
    "/v1/rerank": judging.rank,
    "/v2/rerank": judging.rank,
    "/rerank": judging.rank,
    "/v1/score": judging.score_pairs,
    "/score": judging.score_pairs,
    "/v1/classify": judging.classify,
    "/classify": judging.classify,
    "/v1/pooling": judging.pool,
    "/pooling": judging.pool,
    "/v1/systemone": decisions.answer_questions,
    "/v1/decisions": decisions.create_decision,
    "/v1/messages": anthropic.create_message,
    "/v1/messages/count_tokens": anthropic.count_message_tokens,
    "/tokenize": texts.tokenize,
    "/detokenize": texts.detokenize,
    "/chat/completions": openai.create_chat_completion,
    "/completions": openai.create_completion,
    "/embeddings": texts.create_embeddings,
    "/responses": responses.create_response,
}
"""Answers to POST by path, with bodies in the conventions of OpenAI's API."""
OLLAMA_ANSWERS: Final[Mapping[str, Answer]] = {
    "/api/chat": ollama.chat,
    "/api/generate": ollama.generate,
    "/api/embed": ollama.embed,
    "/api/embeddings": ollama.create_embedding,
    "/api/show": ollama.show,
    "/api/pull": ollama.pull,
}
"""Answers to POST by path, with bodies in the conventions of Ollama's API."""


def routes_of(service: Service, access: Access) -> list[Route]:
    """Return the routes of a server."""
    state = StateRoutes(service.models, needs_key=bool(access.api_keys))
    listings = ollama.OllamaRoutes(service.models)
    dashboard = DashboardRoutes(service.models, service.limits)
    kept_responses = responses.ResponseRoutes(service.responses)
    answers_to_get = {
        "/v1/models": state.models,
        "/models": state.models,
        "/v1/models/{name:path}": state.model,
        "/tokenizer_info": state.tokenizer_info,
        "/": dashboard.page,
        "/dashboard": dashboard.boards,
        "/health": state.health,
        "/version": state.version,
        "/openapi.json": state.describe,
        "/metrics": state.metrics,
        "/api/tags": listings.tags,
        "/api/ps": listings.running,
        "/api/version": listings.version,
        "/v1/responses/{id}": kept_responses.retrieve,
        "/v1/responses/{id}/input_items": kept_responses.list_items,
    }
    return [
        *(Route(path, Endpoint(answer, service), methods=["POST"]) for path, answer in ANSWERS.items()),
        *(
            Route(path, Endpoint(answer, service, OLLAMA_PROMPTS.get(path, OLLAMA)), methods=["POST"])
            for path, answer in OLLAMA_ANSWERS.items()
        ),
        *(Route(path, answer, methods=["GET"]) for path, answer in answers_to_get.items()),
        Route("/dashboard/answer", dashboard.answer, methods=["POST"]),
        Route("/v1/responses/{id}", kept_responses.delete, methods=["DELETE"]),
        *Administration(service, access).routes,
    ]
