"""ASGI app over a session."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from rekindle.core.errors import RekindleError
from rekindle.server.common.errors import ApiError
from rekindle.server.http.access import Access
from rekindle.server.http.exchange import Service
from rekindle.server.http.guards import ApiKeys, ErrorBoundary, error_response
from rekindle.server.http.limits import Limits
from rekindle.server.models.gate import Gate
from rekindle.server.models.served import OneModel
from rekindle.server.models.session import ServedSession
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.server.routing import routes_of
from rekindle.server.tracing.spans import Tracing


def app(
    session: ServedSession,
    *,
    name: str | Sequence[str] | None = None,
    api_keys: Sequence[str] = (),
    admin_keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
    strict: bool = False,
) -> ASGIApp:
    """Return an ASGI app with the APIs of OpenAI, Anthropic and Ollama, for servers under asyncio or trio.

    The session stays usable from Python, and open after the end of the app.

    Args:
        session: the session to serve.
        name: the model's name for clients, or several names (answers have the first); by default the session's name, or
            the last part of a path.
        api_keys: accepted keys, sent as `Authorization: Bearer KEY`. If empty, no key is required.
        admin_keys: keys for administration: pauses, and new weights and adapters from files of this machine. If
            empty, these paths are refused.
        origins: origins of web pages with access from a browser (CORS), such as "https://example.org"; "*" for all.
        limits: bounds on request bodies and on buffers for clients.
        strict: whether hints without effect on the model, such as `verbosity` or a variable unread by the chat
            template, are refused instead of ignored. Unknown fields are refused in either case.

    Raises:
        ConfigError: an API key or an origin is empty or not a string.
    """
    service = Service(OneModel(session, name), limits or Limits(), Gate(), strict)
    return application(service, Access(api_keys, admin_keys, origins), KeptResponses())


def application(service: Service, access: Access, responses: KeptResponses) -> ASGIApp:
    """Return an ASGI app over models, with the responses for later requests."""
    guards = [Middleware(Tracing), Middleware(ErrorBoundary)]
    if access.origins:
        guards.append(
            Middleware(CORSMiddleware, allow_origins=list(access.origins), allow_methods=["*"], allow_headers=["*"])
        )
    if access.api_keys:
        guards.append(Middleware(ApiKeys, keys=(*access.api_keys, *access.admin_keys)))
    return Starlette(
        routes=routes_of(service, access, responses),
        middleware=guards,
        lifespan=lambda _: service.models.running(),
        exception_handlers={HTTPException: error_response, ApiError: error_response, RekindleError: error_response},
    )
