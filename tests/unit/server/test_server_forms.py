"""Errors have the form of the API that a path belongs to, whoever refuses the request."""

from typing import Any

import pytest

from rekindle.server import app
from rekindle.server.common.errors import ApiError, error_object, shutdown_error
from rekindle.server.http.access import Access
from rekindle.server.http.guards import LocalNames
from rekindle.settings.server import ServerSettings
from rekindle.testing import fake_session
from tests.unit.asgi import ask

pytestmark = pytest.mark.anyio

ANTHROPIC, OLLAMA, OPENAI = "/v1/messages/batches", "/api/blobs", "/v1/other"


def anthropic(kind: str, message: str) -> dict[str, Any]:
    """Return an error as Anthropic's API writes it."""
    return {"type": "error", "error": {"type": kind, "message": message}}


async def test_an_unknown_path_is_refused_in_the_form_of_its_api() -> None:
    with fake_session() as session:
        for path in (ANTHROPIC, OLLAMA, OPENAI):
            reply = await ask(app(session), path, {})
            assert reply.status == 404
            message = reply.json["error"] if path == OLLAMA else reply.json["error"]["message"]
            assert message.startswith(f"POST {path} is not served; there are /v1/chat/completions, ")
            if path == ANTHROPIC:
                assert reply.json == anthropic("not_found_error", message)
            if path == OPENAI:
                assert set(reply.error) == {"message", "type", "param", "code"}


async def test_a_mounted_app_knows_the_api_of_a_path_too() -> None:
    with fake_session() as session:
        server = app(session)

        async def mounted(scope: Any, receive: Any, send: Any) -> None:
            await server({**scope, "path": f"/models{scope['path']}", "root_path": "/models"}, receive, send)

        assert (await ask(mounted, ANTHROPIC, {})).error["type"] == "not_found_error"
        assert isinstance((await ask(mounted, OLLAMA, {})).json["error"], str)
        assert (await ask(mounted, "/health")).status == 200


async def test_guards_refuse_in_the_form_of_the_api() -> None:
    with fake_session() as session:
        closed = app(session, api_keys=["k"])
        assert (await ask(closed, ANTHROPIC, {})).error["type"] == "authentication_error"
        assert (await ask(closed, OLLAMA, {})).json["error"].startswith("give an API key")
        assert (await ask(closed, OPENAI, {})).error["code"] == "invalid_api_key"
        guarded = LocalNames(app(session))
        far = {"host": "a.example"}
        assert (await ask(guarded, ANTHROPIC, {}, headers=far)).error["type"] == "invalid_request_error"
        assert (await ask(guarded, OLLAMA, {}, headers=far)).json["error"].startswith("this server accepts the hosts")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
    ],
)
def test_each_status_has_a_type_of_anthropics(status: int, kind: str) -> None:
    assert error_object(ApiError(status, "why"), "/v1/messages") == anthropic(kind, "why")


def test_an_end_of_the_server_is_written_in_each_form() -> None:
    error = shutdown_error()
    assert error_object(error, "/v1/messages") == anthropic("overloaded_error", error.message)
    assert error_object(error, "/api/chat") == {"error": error.message}
    assert error_object(error, "/v1/messagesx") == error.body


def test_keys_are_in_no_repr() -> None:
    settings = ServerSettings(api_keys=["open sesame"], admin_keys=["open sesame"])
    for text in (repr(settings), repr(Access(["open sesame"], ["open sesame"])), str(settings)):
        assert "sesame" not in text
