"""A value of a wrong type at any place of any body is refused by name, or served; it never makes the server fail."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from rekindle.session.session import Session
from tests.costs import Costs
from tests.unit.server.test_server_fuzz import BODIES, FIELDS, TELLING, check, check_all, session

__all__ = ["session"]  # a fixture

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Rome"]},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "description": "Weather.", "parameters": SCHEMA, "strict": True}
TEXT: dict[str, Any] = {"type": "text", "text": "Hello"}
CALL: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief.", "name": "s"},
    {"role": "user", "content": [TEXT]},
    {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": [TEXT]},
    {"role": "user", "content": "Hello"},
]
SAMPLED: dict[str, Any] = {
    **{"temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 1, "stop": ["a"], "max_tokens": 2, "n": 1},
    **{"frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"1": 1.0}},
    **{"bad_words": ["b"], "allowed_token_ids": [65, 66, 67], "stop_token_ids": [66], "min_tokens": 1, "user": "me"},
    **{"ignore_eos": False, "skip_special_tokens": True, "truncate_prompt_tokens": 9, "truncation_side": "left"},
    **{"cache_salt": "s", "draft": False, "priority": 0, "thinking_token_budget": 5, "return_token_ids": True},
    **{"include_stop_str_in_output": True, "stream_options": {"include_usage": True}, "stream": True},
    "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2},
}
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "Sun"}]},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}], "content": []},
]
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [TEXT], "is_error": False}]},
]
MESSAGES: dict[str, Any] = {
    "messages": BLOCKS,
    "system": [TEXT],
    "tools": [{"name": "weather", "description": "W.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
}
OLLAMA: dict[str, Any] = {
    **{"stream": True, "format": SCHEMA, "think": False, "keep_alive": "5m", "logprobs": True, "top_logprobs": 1},
    "options": {
        **{"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 1, "stop": ["a"], "num_predict": 2},
        **{"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "num_ctx": 9, "typical_p": 1},
    },
}
RICH: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SAMPLED,
        **{"messages": CHAT, "response_format": FORM, "logprobs": True, "top_logprobs": 1, "metadata": {"a": "b"}},
        **{"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False, "echo": False},
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "chat_template_kwargs": {"enable_thinking": False},
        **{"reasoning_effort": "low", "add_generation_prompt": True, "continue_final_message": False},
    },
    "/v1/completions": {**SAMPLED, "prompt": ["Hello", "You"], "logprobs": 1, "echo": True, "guided_regex": "a{9}"},
    "/v1/responses": {
        **{"input": ITEMS, "instructions": "Be brief.", "max_output_tokens": 2, "temperature": 0.5, "top_p": 0.5},
        **{"tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "parallel_tool_calls": True},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
        **{"reasoning": {"effort": "low", "summary": "auto"}},
        **{"store": False, "stream": True, "stream_options": {"include_obfuscation": False}},
        **{"truncation": "auto", "metadata": {}, "previous_response_id": None, "user": "me", "seed": 1},
    },
    "/v1/responses/input_tokens": {"input": ITEMS, "instructions": "a", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/embeddings": {
        **{"input": ["Hello", "You"], "encoding_format": "float", "dimensions": 1, "cache_salt": "s", "user": "me"},
        **{"truncate_prompt_tokens": 5, "truncation_side": "left", "add_special_tokens": True},
    },
    "/rerank": {
        **{"query": "Hello", "documents": ["a", {"text": "b"}, {"content": [TEXT]}], "top_n": 1, "raw_scores": True},
        **{"return_documents": True, "instruction": "a", "max_tokens_per_doc": 5, "max_tokens_per_query": 5},
        **{"chat_template_kwargs": {"instruction": "a"}, "cache_salt": "s"},
    },
    "/score": {"text_1": ["Hello"], "text_2": ["a", {"text": "b"}], "instruction": "a", "max_tokens_per_query": 5},
    "/classify": {"input": ["Hello", [65, 66]], "use_activation": True, "cache_salt": "s", "truncate_prompt_tokens": 3},
    "/pooling": {"input": ["Hello"], "task": "embed", "use_activation": True, "dimensions": 1},
    "/v1/systemone": {
        "state": {"a": ["b"]},
        "instructions": "Be strict.",
        "questions": {
            "a": {"type": "choice", "instructions": {"b": "c"}, "criteria": {"b": None, "c": "d"}},
            "b": {"type": "noul", "instructions": "?", "criteria": {"true": "a", "false": "b"}},
            "c": {"type": "score", "instructions": ["?"], "criteria": ["a", "b"]},
        },
        **{"cache_salt": "s", "chat_template_kwargs": {"enable_thinking": False}, "priority": 0, "images": []},
    },
    "/v1/decisions": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {}}]}
        ],
        "questions": [
            {"type": "predicate", "name": "a", "instructions": [{"type": "input_text", "text": "?"}]},
            {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "b", "description": "c"}]},
            {"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"label": "b", "description": "c"}]},
        ],
        **{"cache_salt": "s", "prompt_cache_options": {"mode": "implicit"}, "metadata": {"a": "b"}},
    },
    "/v1/messages": {
        **MESSAGES,
        **{"max_tokens": 2, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "stop_sequences": ["a"], "stream": True},
        **{"metadata": {"user_id": "me"}, "service_tier": "auto"},
    },
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": {
        **OLLAMA,
        "messages": [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": "",
                "thinking": "b",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
            },
            {"role": "tool", "content": "c", "tool_name": "weather"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "/api/generate": {
        **OLLAMA,
        "prompt": "a",
        "system": "b",
        "raw": False,
        "context": [65],
        "suffix": "",
        "images": [],
    },
    "/api/embed": {"input": ["a"], "truncate": True, "dimensions": 1, "keep_alive": 5, "options": {"num_ctx": 5}},
    "/api/embeddings": {"prompt": "a", "keep_alive": 5, "options": {}},
    "/api/show": {"verbose": True, "options": {}, "system": "a"},
    "/api/pull": {"stream": True, "insecure": True},
    "/tokenize": {
        **{"messages": CHAT, "return_token_strs": True, "add_special_tokens": True, "add_generation_prompt": True},
        **{"tools": [{"type": "function", "function": FUNCTION}], "chat_template_kwargs": {"a": 1}},
    },
    "/detokenize": {"tokens": [65, 66]},
}
"""A body with many fields by path."""
WRONG: tuple[Any, ...] = (True, 7, -1.5, "x", "\ud800", [], ["x"], [["x"]], [None], {}, {"x": "y"}, {"type": []}, None)
"""Values of all types."""


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places_in(each, (*path, key))


def changed(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a body with another value at a path."""
    result = deepcopy(body)
    parent: Any = result
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return result


UNANSWERED = ("/api/chat", "/v1/messages", "/v1/systemone", "/v1/decisions")
"""Routes with bodies too long for the model, or with questions for another tokenizer."""
CASES = [(route, path, value) for route in sorted(RICH) for path in places_in(RICH[route]) for value in WRONG]
SHARE = 23
"""One of so many cases is in the cheap tests: each place of a route, and each value, but not all pairs."""


@pytest.mark.parametrize("route", sorted(RICH))
def test_a_rich_body_is_read_to_its_end(session: Session, route: str) -> None:
    assert check(session, route, RICH[route]) == 200 or route in UNANSWERED


@pytest.mark.parametrize("route", sorted(RICH))
def test_a_value_of_another_type_never_makes_the_server_fail(session: Session, route: str) -> None:
    few = [(path, value) for own, path, value in CASES if own == route][::SHARE]
    check_all(session, [(route, changed(RICH[route], path, value)) for path, value in few])


@pytest.mark.deep
def test_all_values_at_all_places_never_make_the_server_fail(session: Session) -> None:
    statuses = Counter(check_all(session, ((route, changed(RICH[route], path, value)) for route, path, value in CASES)))
    assert statuses[200] > 200 < statuses[400], statuses


def mutated(chance: random.Random, route: str) -> Any:
    """Return a random body: a rich or a short one with values, fields or bytes changed, or no body at all."""
    body = deepcopy(chance.choice([RICH[route], BODIES.get(route, {})]))
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        places = list(places_in(body))
        path = chance.choice(places) if places else ("model",)
        value = deepcopy(chance.choice([*WRONG, *TELLING, RICH[chance.choice(sorted(RICH))]]))
        if chance.random() < 0.2:
            path = (*path[:-1], chance.choice(FIELDS)) if isinstance(path[-1], str) else path
        body = changed(body, path, value)
    if chance.random() < 0.9:
        return body
    data = json.dumps(body).encode()
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + chance.randbytes(chance.randrange(9)) + data[end:]


@pytest.mark.parametrize("route", sorted(RICH))
def test_random_bodies_never_make_the_server_fail(session: Session, route: str) -> None:
    chance = random.Random(f"few {route}")
    check_all(session, ((route, mutated(chance, route)) for _ in range(12)))


@pytest.mark.deep
@pytest.mark.parametrize("route", sorted(RICH))
@pytest.mark.parametrize("part", range(5))
def test_a_thousand_random_bodies_never_make_the_server_fail(session: Session, route: str, part: int) -> None:
    """Send 5,000 to each route, in parts for the time limit of a test."""
    chance, costs = random.Random(f"{part} {route}"), Costs(warm_up=200)

    def bodies() -> Iterator[tuple[str, Any]]:
        for number in range(1000):
            body = mutated(chance, route)
            with costs.of(number):  # a generator goes on once its body has its answer
                yield route, body

    check_all(session, bodies())
    costs.check()
