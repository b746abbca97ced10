"""ASGI app over a session."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from rekindle.core.errors import RekindleError
from rekindle.server.access import Access
from rekindle.server.apis import anthropic, judging, ollama, openai, texts
from rekindle.server.apis.administration import Administration
from rekindle.server.apis.state import StateRoutes
from rekindle.server.errors import ApiError
from rekindle.server.exchange import Convention, Endpoint, check_origin
from rekindle.server.gate import Gate
from rekindle.server.guards import ApiKeys, ErrorBoundary, error_response
from rekindle.server.limits import Limits
from rekindle.server.models.served import Models, OneModel
from rekindle.server.models.session import ServedSession
from rekindle.server.reading.ollama import model_in

SHORT = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""Paths served without their first part too, for clients of llama.cpp."""
OLLAMA = Convention(check_origin, model_in)
"""The convention of Ollama's API: many of its clients give no content type."""


def app(
    session: ServedSession,
    *,
    name: str | None = None,
    api_keys: Sequence[str] = (),
    admin_keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
) -> ASGIApp:
    """Return an ASGI app with OpenAI's API over a session, for servers under asyncio or trio.

    The session stays usable from Python, and the app does not close it.

    Args:
        session: the session to serve.
        name: the model's name for clients; by default the session's name, or the last part of a path.
        api_keys: accepted keys, sent as `Authorization: Bearer KEY`. If empty, no key is required.
        admin_keys: keys for administration: pauses, and new weights and adapters from files of this machine. If
            empty, these paths are refused.
        origins: origins of web pages with access from a browser (CORS), such as "https://example.org"; "*" for all.
        limits: bounds on request bodies and on buffers for clients.

    Raises:
        ConfigError: an API key or an origin is empty or not a string.
    """
    return application(OneModel(session, name), Access(api_keys, admin_keys, origins), limits or Limits())


def application(models: Models, access: Access, limits: Limits) -> ASGIApp:
    """Return an ASGI app over models."""
    state, gate = StateRoutes(models, needs_key=bool(access.api_keys)), Gate()
    administration = Administration(models, gate, tuple(access.admin_keys), limits)
    answers = {
        "/v1/chat/completions": openai.create_chat_completion,
        "/v1/responses": openai.create_response,
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
        "/v1/messages": anthropic.create_message,
        "/v1/messages/count_tokens": anthropic.count_message_tokens,
        "/tokenize": texts.tokenize,
        "/detokenize": texts.detokenize,
    }
    ollama_answers = {
        "/api/chat": ollama.chat,
        "/api/generate": ollama.generate,
        "/api/embed": ollama.embed,
        "/api/embeddings": ollama.create_embedding,
        "/api/show": ollama.show,
        "/api/pull": ollama.pull,
    }
    tags = ollama.OllamaRoutes(models)
    answers |= {path.removeprefix("/v1"): answers[path] for path in SHORT}
    pages = {
        "/v1/models": state.models,
        "/models": state.models,
        "/v1/models/{name:path}": state.model,
        "/tokenizer_info": state.tokenizer_info,
        "/health": state.health,
        "/version": state.version,
        "/openapi.json": state.describe,
        "/metrics": state.metrics,
        "/api/tags": tags.tags,
        "/api/ps": tags.running,
        "/api/version": tags.version,
    }
    guards = [Middleware(ErrorBoundary)]
    if access.origins:
        guards.append(
            Middleware(CORSMiddleware, allow_origins=list(access.origins), allow_methods=["*"], allow_headers=["*"])
        )
    if access.api_keys:
        guards.append(Middleware(ApiKeys, keys=(*access.api_keys, *access.admin_keys)))
    return Starlette(
        routes=[
            *(
                Route(path, Endpoint(answer, models, limits, gate), methods=["POST"])
                for path, answer in answers.items()
            ),
            *(
                Route(path, Endpoint(answer, models, limits, gate, OLLAMA), methods=["POST"])
                for path, answer in ollama_answers.items()
            ),
            *(Route(path, page, methods=["GET"]) for path, page in pages.items()),
            *administration.routes,
        ],
        middleware=guards,
        lifespan=lambda _: models.running(),
        exception_handlers={HTTPException: error_response, ApiError: error_response, RekindleError: error_response},
    )
