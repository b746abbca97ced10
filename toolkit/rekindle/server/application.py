"""ASGI app over a session."""

from collections.abc import Sequence
from pathlib import PurePath

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from rekindle.core.errors import ConfigError, RekindleError
from rekindle.server.errors import ApiError
from rekindle.server.guards import ApiKeys, ErrorBoundary, error_response
from rekindle.server.limits import Limits
from rekindle.server.routes import Routes
from rekindle.server.session import ServedSession


def app(
    session: ServedSession,
    *,
    name: str | None = None,
    api_keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
) -> ASGIApp:
    """Return an ASGI app with OpenAI's API over a session, for servers under asyncio or trio.

    The session stays usable from Python, and the app does not close it.

    Args:
        session: the session to serve.
        name: the model's name for clients; by default the session's name, or the last part of a path.
        api_keys: accepted keys; a client sends one as `Authorization: Bearer KEY`. If empty, no key is required.
        origins: origins of web pages with access from a browser (CORS), such as "https://example.org"; "*" for all.
        limits: bounds on request bodies and on buffers for clients.

    Raises:
        ConfigError: an API key or an origin is empty or not a string.
    """
    for name_, values in (("api_keys", api_keys), ("origins", origins)):
        if isinstance(values, str) or not all(values):
            raise ConfigError(f"{name_} must be a list of non-empty strings")
    routes = Routes(session, name or short_name(session.name), limits or Limits())
    paths = (
        ("/v1/models", "GET", routes.models),
        ("/v1/models/{name:path}", "GET", routes.model),
        ("/v1/chat/completions", "POST", routes.chat),
        ("/v1/responses", "POST", routes.response),
        ("/v1/completions", "POST", routes.completion),
        ("/v1/embeddings", "POST", routes.embeddings),
        ("/tokenize", "POST", routes.tokenize),
        ("/detokenize", "POST", routes.detokenize),
        ("/tokenizer_info", "GET", routes.tokenizer_info),
        ("/health", "GET", routes.health),
        ("/metrics", "GET", routes.metrics),
    )
    guards = [Middleware(ErrorBoundary)]
    if origins:
        guards.append(Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]))
    if api_keys:
        guards.append(Middleware(ApiKeys, keys=tuple(api_keys)))
    return Starlette(
        routes=[Route(path, endpoint, methods=[method]) for path, method, endpoint in paths],
        middleware=guards,
        exception_handlers={HTTPException: error_response, ApiError: error_response, RekindleError: error_response},
    )


def short_name(model: str) -> str:
    """Return a model's name: the last part of a path, or "owner/name" for a model on the hub."""
    path = PurePath(model)
    on_the_hub = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..", "~")
    return model if on_the_hub else path.name
