"""Whatever today's agents send, in any mixture, is served or refused, and leaves nothing behind."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.server.test_server_fuzz import BODIES, SCHEMA, TELLING, TOOLS, USER, check

FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
ANTHROPIC = {"name": "f", "input_schema": SCHEMA}
CUT_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
HISTORIES: list[Any] = [
    [USER, {"role": "assistant", "content": None, "tool_calls": [CUT_CALL]}, {"role": "tool", "tool_call_id": "1"}],
    [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        USER,
        {"role": "system", "content": "c"},
    ],
    [USER, {"role": "assistant", "content": "x", "reasoning_content": "y"}, USER],
    [USER, {"role": "assistant", "refusal": "no", "content": None}, USER],
]
SAMPLED: dict[str, list[Any]] = {
    "stream": [True, False],
    "repetition_penalty": [1, 1.5, 0, -1, 1e9],
    "frequency_penalty": [2, -2, 3],
    "temperature": [0, 1],
    "top_p": [0, 1],
    "top_logprobs": [0, 3],
}
CHATS: dict[str, list[Any]] = {
    **SAMPLED,
    "messages": HISTORIES,
    "tools": [
        [],
        TOOLS,
        [*TOOLS, {"type": "web_search"}],
        [{"type": "custom", "custom": {"name": "c"}}],
        [
            {
                "type": "custom",
                "custom": {
                    "name": "c",
                    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}},
                },
            }
        ],
    ],
    "tool_choice": [
        *("auto", "none", "required"),
        {"type": "function", "function": {"name": "f"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
    ],
    "response_format": [
        {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        {"type": "json_object"},
    ],
    "n": [1, 2, 3],
    "logprobs": [True],
    "reasoning_effort": ["none", "xhigh", "minimal"],
    "thinking": [{"type": "disabled"}],
    "enable_thinking": [False],
    "stop": [["a", "a"], ["a", "ab"], "b"],
    "max_tokens": [-1, 1, 5, 6.0, 0],
    "truncate_prompt_tokens": [-1, 5],
}
ITEMS: list[Any] = [
    {"type": "item_reference", "id": "msg_0_0"},
    {"type": "message", "role": "user", "content": "a"},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "developer", "content": "b"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "name": "f", "call_id": "1", "arguments": "{"},
    {"type": "function_call_output", "call_id": "1", "output": None},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a"}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "local_shell_call", "call_id": "2", "action": {}},
    {"type": "custom_tool_call", "name": "c", "call_id": "3", "input": "a"},
    {"type": "custom_tool_call_output", "call_id": "3", "output": "b"},
    USER,
]
RESPONSES: dict[str, list[Any]] = {
    **SAMPLED,
    "tools": [
        [FUNCTION],
        [FUNCTION, {"type": "web_search"}],
        [{"type": "namespace", "name": "n", "tools": [FUNCTION]}],
        [{"type": "local_shell"}, {"type": "image_generation"}, {"type": "tool_search"}],
        [{"type": "custom", "name": "c"}],
    ],
    "tool_choice": [
        *("auto", "none", "required"),
        *({"type": "function", "name": "f"}, {"type": "web_search"}),
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    ],
    "text": [{"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, {"verbosity": "low"}],
    "client_metadata": [{"a": "b"}],
    "access_programs": [[]],
    "stream_options": [{"reasoning_summary_delivery": "x"}],
    "reasoning": [{"effort": "xhigh"}, {"effort": "none", "context": "x"}],
    "store": [True, False],
    "previous_response_id": ["resp_1"],
    "include": [["reasoning.encrypted_content"], ["message.output_text.logprobs"]],
    "max_tool_calls": [1],
    "prompt_cache_key": ["a"],
    "truncation": ["auto", "disabled"],
}
TURNS: list[Any] = [
    USER,
    {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "x"},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "t", "signature": ""},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
            {"type": "text", "text": "also"},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
    {"role": "system", "content": "late"},
    {
        "role": "user",
        "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}],
    },
    {
        "role": "user",
        "content": [{"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]}],
    },
    {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]},
    {"role": "user", "content": [{"type": "mcp_tool_result", "tool_use_id": "m", "content": []}]},
]
MESSAGES: dict[str, list[Any]] = {
    "tools": [
        [ANTHROPIC],
        [ANTHROPIC, {"type": "web_search_20250305", "name": "web_search"}],
        [{"type": "code_execution_20250522", "name": "code_execution"}],
        [{**ANTHROPIC, "strict": True, "cache_control": {"type": "ephemeral"}}],
    ],
    "tool_choice": [
        *({"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}, {"type": "none"}),
        *({"type": "tool", "name": "f"}, {"type": "tool", "name": "web_search"}),
    ],
    "output_config": [{"effort": "max"}, {"format": {"type": "json_schema", "schema": SCHEMA}}],
    "thinking": [
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
        {"type": "adaptive", "display": "omitted", "block_binding": "x"},
    ],
    "system": ["", [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]],
}
OLLAMA: dict[str, list[Any]] = {
    "messages": HISTORIES,
    "tools": [TOOLS],
    "format": [SCHEMA, "json", ""],
    "think": [True, "high", "max", False],
    "keep_alive": [0, "5m", "1h"],
    "stream": [True, False],
    "options": [
        *({"num_predict": 2, "repeat_penalty": 1.1}, {"num_predict": 0}, {"num_predict": 2, "stop": ["a", "a"]}),
        *({"num_predict": -1, "num_ctx": 64}, {"num_predict": 6.0, "repeat_last_n": -1}),
    ],
    "logprobs": [True],
    "top_logprobs": [2],
}
POOLED: dict[str, list[Any]] = {
    "input": ["", ["a", ""], [[1], "a"], [99999], ["a"] * 3, "x" * 600, []],
    "messages": [[USER]],
    "dimensions": [1, 0, 99],
    "encoding_format": ["base64"],
    "truncate_prompt_tokens": [-1, 0, 3],
    "truncation_side": ["left"],
    "add_special_tokens": [False],
    "add_generation_prompt": [True],
    "continue_final_message": [True],
}
FIELDS: dict[str, dict[str, list[Any]]] = {
    "/v1/chat/completions": CHATS,
    "/v1/responses": RESPONSES,
    "/v1/messages": {
        **MESSAGES,
        "stream": [True, False],
        "output_format": [{"type": "json_schema", "schema": SCHEMA}],
        "stop_sequences": [["a", "a"], ["a"] * 300, []],
        "fallbacks": [[]],
        "context_management": [{}],
        "mcp_servers": [[]],
        "metadata": [{}],
        "top_k": [0, 1],
    },
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": OLLAMA,
    "/v1/embeddings": POOLED,
    "/pooling": POOLED,
}
TALKS: dict[str, tuple[str, list[Any]]] = {
    "/v1/responses": ("input", ITEMS),
    "/v1/messages": ("messages", TURNS),
    "/v1/messages/count_tokens": ("messages", TURNS),
}
"""The field of a conversation and its parts, which are mixed in any order."""


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a path and a body with fields of today's clients, and perhaps one with any value."""
    path = draw(st.sampled_from(sorted(FIELDS)))
    names = draw(st.lists(st.sampled_from(sorted(FIELDS[path])), max_size=5, unique=True))
    body = BODIES[path] | {name: draw(st.sampled_from(FIELDS[path][name])) for name in names}
    if path in TALKS and draw(st.booleans()):
        field, parts = TALKS[path]
        body[field] = draw(st.lists(st.sampled_from(parts), min_size=1, max_size=5))
    if draw(st.integers(0, 3)) == 0:
        body[draw(st.sampled_from(sorted(FIELDS[path])))] = draw(st.sampled_from(TELLING))
    return path, body


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(max_context=512, num_pages=256, page_size=16)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        yield session


def fuzz(session: Session, most: int) -> Counter[int]:
    """Send bodies, and return their number by status."""
    statuses = Counter[int]()

    @given(bodies())
    @settings(max_examples=most, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    def fuzzed(case: tuple[str, dict[str, Any]]) -> None:
        statuses[check(session, *case)] += 1

    fuzzed()
    return statuses


def test_a_body_of_an_agent_never_makes_the_server_fail(session: Session) -> None:
    assert fuzz(session, 40)[200]


@pytest.mark.wide
def test_hundreds_of_bodies_of_agents_never_make_the_server_fail(session: Session) -> None:
    assert fuzz(session, 400)[200] > 40


@pytest.mark.deep
def test_thousands_of_bodies_of_agents_never_make_the_server_fail(session: Session) -> None:
    assert fuzz(session, 5000)[200] > 400
