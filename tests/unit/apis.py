"""The APIs for conversations, each with its bodies and with its answers in one form, whole and from streams."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tests.unit.asgi import Reply

FUNCTION = {"name": "weather", "parameters": {"type": "object"}}


@dataclass(frozen=True)
class Wish:
    """A request for an answer.

    Attributes:
        messages: the conversation, in the form of chats.
        has_tool: whether the model may call `FUNCTION`.
        limit: the most tokens; None for any number.
        stop: a stop string; empty for none.
        one_call: whether the answer has at most one call.
        required: whether the answer must be a call.
        streams: whether the answer comes in pieces.
    """

    messages: Sequence[dict[str, Any]] = ({"role": "user", "content": "Weather?"},)
    has_tool: bool = False
    limit: int | None = None
    stop: str = ""
    one_call: bool = False
    required: bool = False
    streams: bool = False

    @property
    def goes_on(self) -> bool:
        """True if the answer continues the last message."""
        return bool(self.messages[-1]["role"] == "assistant")


@dataclass(frozen=True)
class Answer:
    """An answer as a client reads it.

    Attributes:
        calls: the names and arguments of the tool calls; the arguments of a cut call are a text.
        end: "stop", "length" or "tool_calls".
        tokens: the tokens of the prompt and of the answer.
    """

    reasoning: str
    content: str
    calls: list[tuple[str, Any]]
    end: str
    tokens: tuple[int, int]


class Api(Protocol):
    """An API for conversations."""

    path: str

    def body(self, wish: Wish) -> dict[str, Any]:
        """Return the body for a wish."""
        ...

    def whole(self, payload: Any) -> Answer:
        """Return the answer in the JSON of a whole one."""
        ...

    def joined(self, reply: Reply) -> Any:
        """Return the events of a stream in the form of a whole answer; check their order."""
        ...

    def error(self, reply: Reply) -> str:
        """Return the message of the error at the end of a stream."""
        ...


def arguments(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return text


def named_events(reply: Reply) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names are the types of their data."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for event in reply.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def calls_in(deltas: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the calls of a stream of a chat, put together as clients do."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for piece in delta.get("tool_calls", ()):
            index = piece.pop("index")
            if index not in calls:
                assert piece["function"]["arguments"], "no call looks like one without arguments"
                calls[index] = piece
            else:
                assert piece.keys() == {"function"}
                calls[index]["function"]["arguments"] += piece["function"]["arguments"]
    return list(calls.values())


class Chats:
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"

    def body(self, wish: Wish) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": list(wish.messages), "max_tokens": wish.limit, "stop": wish.stop or None}
        if wish.has_tool:
            body |= {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": not wish.one_call}
            body["tool_choice"] = "required" if wish.required else "auto"
        if wish.goes_on:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body | ({"stream": True, "stream_options": {"include_usage": True}} if wish.streams else {})

    def whole(self, payload: Any) -> Answer:
        (choice,), usage = payload["choices"], payload["usage"]
        message = choice["message"]
        calls = [each["function"] for each in message.get("tool_calls", ())]
        return Answer(
            message.get("reasoning_content") or "",
            message["content"] or "",
            [(each["name"], arguments(each["arguments"])) for each in calls],
            choice["finish_reason"],
            (usage["prompt_tokens"], usage["completion_tokens"]),
        )

    def joined(self, reply: Reply) -> Any:
        *events, last = reply.events
        assert last["choices"] == []
        assert len({event["id"] for event in reply.events}) == 1
        choices = [event["choices"][0] for event in events]
        assert all(each["finish_reason"] is None for each in choices[:-1])
        deltas = [each["delta"] for each in choices]
        assert deltas[0] == {"role": "assistant", "content": None}
        texts = {key: "".join(each.get(key) or "" for each in deltas) for key in ("reasoning_content", "content")}
        message = {**texts, "tool_calls": calls_in(deltas)}
        return {"choices": [{**choices[-1], "message": message}], "usage": last["usage"]}

    def error(self, reply: Reply) -> str:
        return str(reply.events[-1]["error"]["message"])


class Responses:
    """OpenAI's responses."""

    path = "/v1/responses"

    def body(self, wish: Wish) -> dict[str, Any]:
        body: dict[str, Any] = {"input": list(wish.messages), "max_output_tokens": wish.limit}
        body |= {"stop": wish.stop or None, "stream": wish.streams}
        if wish.has_tool:
            body |= {"tools": [{"type": "function", **FUNCTION}], "parallel_tool_calls": not wish.one_call}
            body["tool_choice"] = "required" if wish.required else "auto"
        return body

    def whole(self, payload: Any) -> Answer:
        texts = {"reasoning": "", "message": ""}
        calls = []
        for item in payload["output"]:
            if item["type"] == "function_call":
                calls.append((item["name"], arguments(item["arguments"])))
            else:
                texts[item["type"]] += "".join(part["text"] for part in item["content"])
        end = "length" if payload["status"] == "incomplete" else "tool_calls" if calls else "stop"
        usage = payload["usage"]
        return Answer(texts["reasoning"], texts["message"], calls, end, (usage["input_tokens"], usage["output_tokens"]))

    def joined(self, reply: Reply) -> Any:
        events = named_events(reply)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        last = events[-1]["response"]
        assert events[-1]["type"] == f"response.{last['status']}"
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == last["output"]
        for place, item in enumerate(done):
            here = [event for event in events if event.get("output_index") == place]
            deltas = "".join(event.get("delta", "") for event in here)
            assert deltas == item.get("arguments", "") + "".join(part["text"] for part in item.get("content", ()))
            assert here[0]["type"] == "response.output_item.added"
        return last

    def error(self, reply: Reply) -> str:
        first, *_, last = named_events(reply)
        assert (first["type"], last["type"]) == ("response.created", "error")
        return str(last["message"])


class Messages:
    """Anthropic's messages."""

    path = "/v1/messages"

    def body(self, wish: Wish) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": [_with_blocks(each) for each in wish.messages], "stream": wish.streams}
        body |= {"max_tokens": wish.limit or 500, "stop_sequences": [wish.stop] if wish.stop else []}
        if wish.has_tool:
            kind = "any" if wish.required else "auto"
            body["tools"] = [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}]
            body["tool_choice"] = {"type": kind, "disable_parallel_tool_use": wish.one_call}
        return body

    def whole(self, payload: Any) -> Answer:
        texts = {"thinking": "", "text": ""}
        calls = []
        for block in payload["content"]:
            if block["type"] == "tool_use":
                calls.append((block["name"], block["input"]))
            else:
                texts[block["type"]] += block[block["type"]]
        usage = payload["usage"]
        prompt = sum(usage[name] for name in usage if name.endswith("input_tokens"))
        ends = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
        end = ends[payload["stop_reason"]]
        return Answer(texts["thinking"], texts["text"], calls, end, (prompt, usage["output_tokens"]))

    def joined(self, reply: Reply) -> dict[str, Any]:
        first, *middle, end, stop = named_events(reply)
        assert (first["type"], end["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
        content: list[Any] = []
        texts: dict[int, str] = {}
        is_open = False
        for event in middle:
            if event["type"] == "content_block_start":
                assert (event["index"], is_open) == (len(content), False)
                content.append(event["content_block"])
                is_open = True
                continue
            assert (event["index"], is_open) == (len(content) - 1, True)
            if event["type"] == "content_block_stop":
                is_open = False
                if event["index"] in texts:
                    content[-1]["input"] = arguments(texts[event["index"]])
                continue
            delta = dict(event["delta"])
            kind = delta.pop("type")
            ((name, value),) = delta.items()
            assert kind == {"partial_json": "input_json_delta"}.get(name, f"{name}_delta")
            if name == "partial_json":
                texts[event["index"]] = texts.get(event["index"], "") + value
            else:
                content[-1][name] += value
        assert not is_open
        return {**first["message"], **end["delta"], "content": content, "usage": end["usage"]}

    def error(self, reply: Reply) -> str:
        first, *_, last = named_events(reply)
        assert (first["type"], last["type"]) == ("message_start", "error")
        return str(last["error"]["message"])


def _with_blocks(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning as a block of thinking."""
    if "reasoning_content" not in message:
        return message
    thinking = {"type": "thinking", "thinking": message["reasoning_content"], "signature": ""}
    return {"role": message["role"], "content": [thinking, {"type": "text", "text": message["content"]}]}


class OllamaChats:
    """Ollama's chats."""

    path = "/api/chat"

    def body(self, wish: Wish) -> dict[str, Any]:
        names = {"reasoning_content": "thinking"}
        messages = [{names.get(name, name): each[name] for name in each} for each in wish.messages]
        options: dict[str, Any] = {"num_predict": -1 if wish.limit is None else wish.limit, "stop": wish.stop or None}
        tools = [{"type": "function", "function": FUNCTION}] if wish.has_tool else []
        return {"messages": messages, "tools": tools, "options": options, "stream": wish.streams}

    def whole(self, payload: Any) -> Answer:
        message = payload["message"]
        calls = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", ())]
        end = "tool_calls" if calls and payload["done_reason"] == "stop" else payload["done_reason"]
        tokens = (payload["prompt_eval_count"], payload["eval_count"])
        return Answer(message.get("thinking", ""), message["content"], calls, end, tokens)

    def joined(self, reply: Reply) -> Any:
        assert reply.headers["content-type"] == "application/x-ndjson"
        events = [json.loads(line) for line in reply.body.decode().splitlines()]
        assert [each["done"] for each in events] == [False] * (len(events) - 1) + [True]
        message: dict[str, Any] = {}
        for each in events:
            for name, value in each["message"].items():
                message[name] = message[name] + value if name in message and name != "role" else value
        return {**events[-1], "message": message}

    def error(self, reply: Reply) -> str:
        return str(json.loads(reply.body.decode().splitlines()[-1])["error"])


CHATS, RESPONSES, MESSAGES, OLLAMA = Chats(), Responses(), Messages(), OllamaChats()
APIS: tuple[Api, ...] = (CHATS, RESPONSES, MESSAGES, OLLAMA)
