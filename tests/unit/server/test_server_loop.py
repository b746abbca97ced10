"""The event loop does no work that grows with a request: it calls few functions, and parses and writes little JSON."""

import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.server import app
from rekindle.server.common.errors import ApiError
from rekindle.server.common.events import json_bytes, large_json_bytes
from rekindle.server.common.fields import LARGE, MOST_PARTS, parse_body
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask
from tests.unit.sessions import ended_blocking

MANY = 20_000
"""Items of a large request. Each would take at least one call on the loop."""
MOST_CALLS = 10_000
USER = {"role": "user", "content": "Hello"}
ASKED: dict[str, Any] = {"type": "choice", "criteria": {"a": None, "b": "c"}}
TEXT = "a b" * MANY
BLOCKS = [{"type": "text", "text": "a"}] * MANY
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": {**FUNCTION, "name": f"f{each}"}} for each in range(2_000)]
FLAT = [{"type": "function", **FUNCTION, "name": f"f{each}"} for each in range(2_000)]
ANSWERED: dict[str, Any] = {"input": "a", "max_output_tokens": 1, "tool_choice": "none"}
CHAT: dict[str, Any] = {"messages": [USER], "max_tokens": 1}
LARK = {"syntax": "lark", "definition": "start: " + " ".join(f'"a{each}"' for each in range(2000))}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/v1/chat/completions", {"messages": [USER] * MANY, "max_tokens": 1}),
    "blocks": ("/v1/chat/completions", {"messages": [{"role": "user", "content": BLOCKS}], "max_tokens": 1}),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": TOOLS}),
    "a required tool": ("/v1/chat/completions", {**CHAT, "tools": TOOLS[:50], "tool_choice": "required"}),
    "a custom tool": (
        "/v1/chat/completions",
        {
            **CHAT,
            "tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": LARK}}}],
        },
    ),
    "bad_words": ("/v1/chat/completions", {**CHAT, "bad_words": [f"w{each}" for each in range(MANY)]}),
    "logit_bias": ("/v1/chat/completions", {**CHAT, "logit_bias": {str(each): 1 for each in range(MANY)}}),
    "stop": ("/v1/chat/completions", {**CHAT, "stop": [f"w{each}" for each in range(MANY)]}),
    "allowed_token_ids": ("/v1/chat/completions", {**CHAT, "allowed_token_ids": list(range(1000, 1000 + MANY))}),
    "an unknown field": ("/v1/chat/completions", {**CHAT, "x": [[each] for each in range(MANY)]}),
    "prompts": ("/v1/completions", {"prompt": ["a"] * MANY, "max_tokens": 1}),
    "ids": ("/v1/completions", {"prompt": [[each % 250 for each in range(400)]] * 64, "max_tokens": 1}),
    "tools of responses": ("/v1/responses", {**ANSWERED, "tools": FLAT}),
    "a stream with tools": ("/v1/responses", {**ANSWERED, "tools": FLAT, "stream": True}),
    "metadata": ("/v1/responses", {**ANSWERED, "metadata": {f"k{each}": "a" for each in range(MANY)}}),
    "items": ("/v1/responses", {"input": [USER] * MANY, "max_output_tokens": 1}),
    "blocks of messages": ("/v1/messages", {"messages": [{"role": "user", "content": BLOCKS}], "max_tokens": 1}),
    "count_tokens": ("/v1/messages/count_tokens", {"messages": [USER, {"role": "assistant", "content": "a"}] * MANY}),
    "a history": ("/api/chat", {"messages": [USER] * (MANY // 2), "stream": False}),
    "context": ("/api/generate", {"prompt": "a", "context": [1] * 2 * MANY, "stream": False}),
    "keep_alive": ("/api/generate", {"prompt": "a", "keep_alive": "1s" * 4 * MANY, "stream": False}),
    "embed": ("/api/embed", {"input": ["a"] * MANY}),
    "embeddings": ("/v1/embeddings", {"input": [1] * 2 * MANY}),
    "documents": ("/v1/rerank", {"query": "a", "documents": ["b"] * MANY}),
    "pairs": ("/v1/score", {"text_1": "a", "text_2": ["b"] * MANY}),
    "classify": ("/v1/classify", {"input": ["b"] * MANY}),
    "pooling": ("/v1/pooling", {"input": ["b"] * MANY}),
    "questions": ("/v1/systemone", {"state": "a", "questions": {f"q{each}": ASKED for each in range(MANY)}}),
    "a large state": ("/v1/systemone", {"state": [[each] for each in range(MANY)], "questions": {"q": ASKED}}),
    "tokenize": ("/tokenize", {"prompt": TEXT}),
    "token_strs": ("/tokenize", {"prompt": TEXT, "return_token_strs": True}),
    "pieces": ("/tokenize", {"content": TEXT, "with_pieces": True}),
    "tokenize a chat": ("/tokenize", {"messages": [USER] * MANY}),
    "detokenize": ("/detokenize", {"tokens": [1, 2, 3] * MANY}),
    "too many tokens": ("/detokenize", {"tokens": [1] * (2**20 + 1)}),
    "a long prompt": ("/v1/completions", {"prompt": "a" * 2**20, "max_tokens": 1}),
}


class Work:
    """Count of the work of one thread.

    Attributes:
        calls: calls of functions in Python.
        largest: most characters of JSON read or written at once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.largest, self._thread = 0, 0, threading.get_ident()
        loads, dumps = json.loads, json.dumps

        def counted_loads(text: Any, **options: Any) -> Any:
            self._note(len(text))
            return loads(text, **options)

        def counted_dumps(value: Any, **options: Any) -> str:
            text = dumps(value, **options)
            self._note(len(text))
            return text

        monkeypatch.setattr(json, "loads", counted_loads)
        monkeypatch.setattr(json, "dumps", counted_dumps)

    def count(self, frame: object, event: str, argument: object) -> None:
        """Note an event of the interpreter."""
        self.calls += event == "call"

    def _note(self, size: int) -> None:
        if threading.get_ident() == self._thread:
            self.largest = max(self.largest, size)


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(max_context=1024, num_pages=256, page_size=16)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        yield session


@pytest.mark.parametrize("name", REQUESTS)
def test_the_loop_does_little_for_a_large_request(name: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    path, body = REQUESTS[name]
    server = app(session)

    async def run() -> None:
        await ask(server, "/tokenize", {"prompt": "a"})  # imports
        data = json.dumps(body).encode()
        work = Work(monkeypatch)
        sys.setprofile(work.count)
        try:
            reply = await ask(server, path, data)
        finally:
            sys.setprofile(None)
        assert reply.status in (200, 400), reply.body
        assert work.calls < MOST_CALLS
        assert work.largest < 2 * LARGE

    anyio.run(run)
    ended_blocking(session)


def test_the_loop_does_little_for_a_large_kept_response(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    server = app(session)

    async def run() -> None:
        response = await ask(server, "/v1/responses", {**ANSWERED, "tools": FLAT})
        path = f"/v1/responses/{response.json['id']}"
        work = Work(monkeypatch)
        sys.setprofile(work.count)
        try:
            copy, items = [await ask(server, each) for each in (path, f"{path}/input_items")]
        finally:
            sys.setprofile(None)
        assert copy.body == response.body
        assert items.status == 200
        assert work.calls < MOST_CALLS
        assert work.largest < 2 * LARGE

    anyio.run(run)
    ended_blocking(session)


@pytest.mark.parametrize(
    "value",
    [
        {"a": list(range(20_000)), "b": [], "c": {}, "d": [[], {}, [1.5, -2e3, True, False, None, "é\n\\", ""]]},
        {f"k{each}": each for each in range(20_000)},
        {"a": ["x"] * 20_000 + [{"b": ["y"] * 20_000}], "text": '"\\\u2028' * 20_000},
    ],
)
@pytest.mark.parametrize("layout", [{}, {"indent": 1}, {"separators": (",", ":")}], ids=["spaced", "lines", "dense"])
def test_large_bodies_are_read_and_written_as_by_json(value: Any, layout: dict[str, Any]) -> None:
    for ascii_only in (True, False):
        data = json.dumps(value, ensure_ascii=ascii_only, **layout).encode()
        assert len(data) > LARGE
        assert parse_body(data).peek(value) == value
    assert large_json_bytes(value) == json_bytes(value)


@pytest.mark.parametrize(
    "end",
    [
        "]",
        "]}}",
        ",]}",
        "1,,2]}",
        "1 2]}",
        '"a]}',
        "NaN]}",
        "01]}",
        "{'a':1}]}",
        '{"a" 1}]}',
        '{"a":}]}',
        '{"a":1,}]}',
        "",
    ],
)
def test_large_bodies_that_are_no_json_are_refused(end: str) -> None:
    with pytest.raises(ApiError, match="the body"):
        parse_body(('{"a": [' + "1, " * LARGE + end).encode())


def test_a_body_with_too_many_parts_is_refused() -> None:
    for part in ("[]", "{}"):
        with pytest.raises(ApiError, match=f"more than {MOST_PARTS:,} objects and lists"):
            parse_body(('{"a": [' + ",".join([part] * MOST_PARTS) + "]}").encode())
    with pytest.raises(ApiError, match="cannot be read"):
        parse_body(("[" * 2 * LARGE).encode())


def test_a_text_that_is_surely_too_long_is_not_tokenized(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("the text was tokenized"))
    server = app(session)
    for path, body in (
        ("/v1/completions", {"prompt": "a" * 2**20}),
        ("/v1/completions", {"prompt": ["a" * 2**20]}),
    ):
        reply = anyio.run(partial(ask, server, path, {**body, "max_tokens": 1}))
        assert reply.status == 400
        assert "1023 tokens" in reply.error["message"]
        assert reply.error["code"] == "context_length_exceeded"
