"""The paths of a server."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.routing import Route

from rekindle.server.admin.administration import Administration
from rekindle.server.admin.dashboard import DashboardRoutes
from rekindle.server.admin.state import StateRoutes
from rekindle.server.anthropic import routes as anthropic
from rekindle.server.anthropic.stream import MESSAGES
from rekindle.server.decisions import routes as decisions
from rekindle.server.http.access import Access
from rekindle.server.http.endpoint import Answer, Convention, Endpoint, check_origin
from rekindle.server.http.exchange import Service
from rekindle.server.judging import cohere_routes as cohere
from rekindle.server.judging import encoding_routes
from rekindle.server.judging import routes as judging
from rekindle.server.judging import tei_routes as tei
from rekindle.server.ollama import routes as ollama
from rekindle.server.ollama.stream import OLLAMA
from rekindle.server.openai.chat.routes import create_chat_completion
from rekindle.server.openai.completions.routes import create_completion
from rekindle.server.openai.events import COMPLETIONS
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.server.openai.responses.routes import ResponseRoutes
from rekindle.server.openai.responses.stream import RESPONSES

ANSWERS: Final[Mapping[str, Answer]] = {
    "/v1/chat/completions": create_chat_completion,
    "/v1/completions": create_completion,
    "/v1/embeddings": encoding_routes.create_embeddings,
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
    "/tokenize": encoding_routes.tokenize,
    "/detokenize": encoding_routes.detokenize,
    "/chat/completions": create_chat_completion,
    "/completions": create_completion,
    "/embeddings": encoding_routes.create_embeddings,
    "/embed": tei.embed,
    "/predict": tei.predict,
    "/similarity": tei.similarity,
    "/": tei.by_task,
    "/v1/embed": cohere.embed,
    "/v2/embed": cohere.embed_by_type,
}
"""Answers to POST by path, with bodies in the conventions of OpenAI's API."""
ANTHROPIC_ANSWERS: Final[Mapping[str, Answer]] = {
    "/v1/messages": anthropic.create_message,
    "/v1/messages/count_tokens": anthropic.count_message_tokens,
}
"""Answers to POST by path, with bodies in the conventions of Anthropic's API."""
OLLAMA_ANSWERS: Final[Mapping[str, Answer]] = {
    "/api/chat": ollama.chat,
    "/api/generate": ollama.generate,
    "/api/embed": ollama.embed,
    "/api/embeddings": ollama.create_embedding,
    "/api/show": ollama.show,
    "/api/pull": ollama.pull,
}
"""Answers to POST by path, with bodies in the conventions of Ollama's API: many of its clients give no content type."""
UNLOADS: Final[Mapping[str, bool]] = {"/api/chat": True, "/api/generate": False}
"""Paths for prompts, True for chats: a body without a prompt may close its model, so no model opens for it."""


def routes_of(service: Service, access: Access, earlier: KeptResponses) -> list[Route]:
    """Return the routes of a server."""
    state = StateRoutes(service.models, needs_key=bool(access.api_keys), most_prompts=service.limits.prompts)
    listings = ollama.OllamaRoutes(service.models)
    dashboard = DashboardRoutes(service.models, service.limits)
    responses = ResponseRoutes(earlier)
    answers_to_post: dict[Convention, Mapping[str, Answer]] = {
        Convention(COMPLETIONS): ANSWERS,
        Convention(RESPONSES): {
            "/v1/responses": responses.create,
            "/responses": responses.create,
            "/v1/responses/input_tokens": responses.count_tokens,
        },
        Convention(MESSAGES): ANTHROPIC_ANSWERS,
    }
    answers_to_get = {
        "/v1/models": state.models,
        "/models": state.models,
        "/v1/models/{name:path}": state.model,
        "/tokenizer_info": state.tokenizer_info,
        "/": dashboard.page,
        "/dashboard": dashboard.boards,
        "/health": state.health,
        "/version": state.version,
        "/info": state.info,
        "/openapi.json": state.describe,
        "/metrics": state.metrics,
        "/api/tags": listings.tags,
        "/api/ps": listings.running,
        "/api/version": listings.version,
        "/v1/responses/{id}": responses.retrieve,
        "/v1/responses/{id}/input_items": responses.list_items,
    }
    return [
        *(
            Route(path, Endpoint(answer, service, convention), methods=["POST"])
            for convention, answers in answers_to_post.items()
            for path, answer in answers.items()
        ),
        *(
            Route(path, Endpoint(answer, service, _ollama(path)), methods=["POST"])
            for path, answer in OLLAMA_ANSWERS.items()
        ),
        *(Route(path, answer, methods=["GET"]) for path, answer in answers_to_get.items()),
        Route("/dashboard/answer", dashboard.answer, methods=["POST"]),
        Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
        *Administration(service, access).routes,
    ]


def _ollama(path: str) -> Convention:
    """Return the convention of a path of Ollama's API."""
    if path not in UNLOADS:
        return Convention(OLLAMA, check_origin, ollama.model_in)
    unload = partial(ollama.unload, in_chat=UNLOADS[path])
    return Convention(OLLAMA, check_origin, ollama.model_in, unload, ollama.streams)
