"""The server describes each of its paths, with the fields of the bodies as their readers look for them."""

from typing import Any

import pytest

import rekindle
from rekindle.server import app
from rekindle.server.admin.openapi import BODIES
from rekindle.testing import fake_session
from tests.unit.asgi import ask
from tests.unit.scripted import scripted_session
from tests.unit.server.test_server_fuzz import BODIES as FUZZED

pytestmark = pytest.mark.anyio


async def described(**settings: Any) -> dict[str, Any]:
    """Return the description of a server."""
    with fake_session() as session:
        headers = {"x-api-key": "k"}
        reply = await ask(app(session, **settings), "/openapi.json", headers=headers)
    assert reply.status == 200
    description: dict[str, Any] = reply.json
    return description


async def test_each_path_is_described() -> None:
    with fake_session() as session:
        paths: dict[str, set[str]] = {}
        for route in app(session).routes:  # type: ignore[attr-defined]
            paths.setdefault(route.path.replace(":path", ""), set()).update(route.methods)
    description = await described()
    assert {path: {*each} for path, each in description["paths"].items()} == {
        path: {method.lower() for method in methods - {"HEAD"}} for path, methods in paths.items()
    }
    for operations in description["paths"].values():
        for operation in operations.values():
            assert len(operation["summary"].split()) > 1
            assert "/" not in operation["summary"]
            assert operation["responses"]["200"]
    assert description["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["name"] == "name"
    assert description["info"]["version"] == rekindle.__version__


async def test_bodies_have_the_fields_of_their_readers() -> None:
    def schema(path: str) -> dict[str, Any]:
        operation: dict[str, Any] = paths[path]["post"]
        body_schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
        return body_schema

    paths = (await described())["paths"]
    message = schema("/v1/messages")
    assert sorted(message["required"]) == ["max_tokens", "messages"]
    assert message["properties"]["stop_sequences"] == {"type": "array", "items": {}}
    assert message["properties"]["stream"] == {"type": "boolean"}
    assert schema("/chat/completions") == schema("/v1/chat/completions")
    assert schema("/api/chat")["required"] == []
    assert {*BODIES} <= {*paths}
    for path in {*FUZZED} & {*BODIES}:
        assert {*FUZZED[path]} <= {*schema(path)["properties"]}


async def test_queries_have_their_parameters_with_choices_and_defaults() -> None:
    paths = (await described())["paths"]
    parameters = {each["name"]: each for each in paths["/v1/responses/{id}/input_items"]["get"]["parameters"]}
    assert {name: each["in"] for name, each in parameters.items()} == {
        "id": "path",
        **dict.fromkeys(("after", "include", "limit", "order"), "query"),
    }
    assert parameters["order"]["schema"] == {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
    for path, names in {"/pause": ["mode", "model"], "/sleep": ["mode", "level", "model"]}.items():
        assert [each["name"] for each in paths[path]["post"]["parameters"]] == names
    assert "parameters" not in paths["/v1/models"]["get"]


async def test_a_server_with_keys_says_so() -> None:
    assert "security" not in await described()
    assert [*(await described(api_keys=["k"]))["security"][0]] == ["key"]


async def test_paths_without_their_first_part_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: "Hi") as session:
        chat = {"messages": [{"role": "user", "content": "x"}]}
        bodies = {"/chat/completions": chat, "/completions": {"prompt": "x"}, "/embeddings": {"input": "x"}}
        for path, body in bodies.items():
            long, short = [(await ask(app(session), prefix + path, body)).json for prefix in ("/v1", "")]
            for varied in ("id", "created", "usage"):
                assert (long.pop(varied, None) is None) == (short.pop(varied, None) is None)
            assert long == short
        assert (await ask(app(session), "/models")).json == (await ask(app(session), "/v1/models")).json
        assert (await ask(app(session), "/version")).json == {"version": rekindle.__version__}
