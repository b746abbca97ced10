"""The ASGI app of a session."""

from collections.abc import Sequence
from pathlib import PurePath

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from rekindle.core.errors import ConfigError, RekindleError
from rekindle.server.guards import ApiKeys, Caught, told
from rekindle.server.limits import Limits
from rekindle.server.refused import Refused
from rekindle.server.routes import Routes
from rekindle.server.served import Served


def app(
    session: Served,
    *,
    name: str | None = None,
    api_keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
) -> ASGIApp:
    """Return an ASGI app that serves a session in the form of OpenAI's API, for a server under asyncio or trio.

    The session may be used beside it, and is not closed by it.

    Args:
        session: what it serves.
        name: what clients call the model; the default is what the session was opened as, of a path its last part.
        api_keys: of which a client has to give one, as `Authorization: Bearer KEY`; none are needed if there are none.
        origins: of web pages that may ask from a browser, such as "https://example.org", or "*" for all of them.
        limits: of what clients may send, and of what is kept for them.

    Raises:
        ConfigError: an API key or an origin is no text or empty.
    """
    for what, given in (("api_keys", api_keys), ("origins", origins)):
        if isinstance(given, str) or not all(given):
            raise ConfigError(f"{what} must be a list of texts, none of them empty")
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
    guards = [Middleware(Caught)]
    if origins:
        guards.append(Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]))
    if api_keys:
        guards.append(Middleware(ApiKeys, keys=tuple(api_keys)))
    return Starlette(
        routes=[Route(path, endpoint, methods=[method]) for path, method, endpoint in paths],
        middleware=guards,
        exception_handlers={HTTPException: told, Refused: told, RekindleError: told},
    )


def short_name(model: str) -> str:
    """Return a model's name without where it lies; that of a model on the hub has its owner too."""
    path = PurePath(model)
    on_the_hub = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..", "~")
    return model if on_the_hub else path.name
