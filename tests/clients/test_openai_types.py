"""All bodies and events of chats and responses have the fields that the types of OpenAI's client require."""

import json
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from rekindle.server.listening.running import Server
from tests.clients.errands import Errands, serving

TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "custom", "name": "note"}]}
CALLS = [("weather", {"city": "Rome"}), ("n__note", {"input": "warm"})]


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": "Bearer key"}
    reply = httpx.post(f"{server.url}{path}", json={"model": "fake", **body}, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply


def events(reply: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_bodies_and_events_have_the_required_fields(place: int) -> None:
    calls = CALLS[place : place + 1]
    with serving(Errands(calls=[calls], results=[[""]])) as server:
        tools = [{"type": "function", **TOOL}, NAMESPACE]
        body: dict[str, Any] = {"input": "ROUND-1", "tools": tools}
        response = post(server, "/v1/responses", body).json()
        Response.model_validate(response)
        kinds = {event["type"] for event in events(post(server, "/v1/responses", {**body, "stream": True}))}
        assert "response.completed" in kinds
        for event in events(post(server, "/v1/responses", {**body, "stream": True})):
            TypeAdapter(ResponseStreamEvent).validate_python(event)
        listed = httpx.get(
            f"{server.url}/v1/responses/{response['id']}/input_items", headers={"authorization": "Bearer key"}
        )
        ResponseItemList.model_validate(listed.json())
        if place == 1:  # of a namespace, which chats have not
            return
        chat = {"messages": [{"role": "user", "content": "ROUND-1"}], "tools": [{"type": "function", "function": TOOL}]}
        ChatCompletion.model_validate(post(server, "/v1/chat/completions", chat).json())
        for event in events(post(server, "/v1/chat/completions", {**chat, "stream": True})):
            ChatCompletionChunk.model_validate(event)
