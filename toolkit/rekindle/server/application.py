"""ASGI app over a session."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from rekindle.core.errors import ConfigError, RekindleError
from rekindle.server.apis import openai, texts
from rekindle.server.apis.state import StateRoutes
from rekindle.server.errors import ApiError
from rekindle.server.exchange import Endpoint
from rekindle.server.guards import ApiKeys, ErrorBoundary, error_response
from rekindle.server.limits import Limits
from rekindle.server.models import Models, OneModel
from rekindle.server.session import ServedSession


def app(
    session: ServedSession,
    *,
    name: str | None = None,
    api_keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
    strict: bool = False,
) -> ASGIApp:
    """Return an ASGI app with OpenAI's API over a session, for servers under asyncio or trio.

    The session stays usable from Python, and the app does not close it.

    Args:
        session: the session to serve.
        name: the model's name for clients; by default the session's name, or the last part of a path.
        api_keys: accepted keys; a client sends one as `Authorization: Bearer KEY`. If empty, no key is required.
        origins: origins of web pages with access from a browser (CORS), such as "https://example.org"; "*" for all.
        limits: bounds on request bodies and on buffers for clients.
        strict: whether hints without effect on the model, such as `verbosity` or a variable that the chat template
            does not read, are refused instead of ignored. Unknown fields are refused in either case.

    Raises:
        ConfigError: an API key or an origin is empty or not a string.
    """
    for name_, values in (("api_keys", api_keys), ("origins", origins)):
        if isinstance(values, str) or not all(values):
            raise ConfigError(f"{name_} must be a list of non-empty strings")
    return application(OneModel(session, name), api_keys, origins, limits or Limits(), strict=strict)


def application(
    models: Models, api_keys: Sequence[str], origins: Sequence[str], limits: Limits, *, strict: bool = False
) -> ASGIApp:
    """Return an ASGI app over models; arguments as in `app`."""
    state = StateRoutes(models)
    answers = {
        "/v1/chat/completions": openai.create_chat_completion,
        "/v1/responses": openai.create_response,
        "/v1/completions": openai.create_completion,
        "/v1/embeddings": texts.create_embeddings,
        "/tokenize": texts.tokenize,
        "/detokenize": texts.detokenize,
    }
    pages = {
        "/v1/models": state.models,
        "/v1/models/{name:path}": state.model,
        "/tokenizer_info": state.tokenizer_info,
        "/health": state.health,
        "/metrics": state.metrics,
    }
    guards = [Middleware(ErrorBoundary)]
    if origins:
        guards.append(Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]))
    if api_keys:
        guards.append(Middleware(ApiKeys, keys=tuple(api_keys)))
    return Starlette(
        routes=[
            *(
                Route(path, Endpoint(answer, models, limits, strict=strict), methods=["POST"])
                for path, answer in answers.items()
            ),
            *(Route(path, page, methods=["GET"]) for path, page in pages.items()),
        ],
        middleware=guards,
        exception_handlers={HTTPException: error_response, ApiError: error_response, RekindleError: error_response},
    )
