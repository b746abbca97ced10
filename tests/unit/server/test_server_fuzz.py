"""Whatever a body has, it is served or refused, and leaves nothing behind."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.uses import Classifier, Uses
from rekindle.server import Limits, app
from rekindle.server.common.sampling import NEUTRAL, SAMPLING
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import Reply, ask
from tests.unit.sessions import assert_all_is_free, ended_blocking

USER = {"role": "user", "content": "Hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/v1/embeddings": {"input": "Hello"},
    "/rerank": {"query": "Hello", "documents": ["a", "b"]},
    "/score": {"text_1": "Hello", "text_2": ["a", "b"]},
    "/classify": {"input": "Hello"},
    "/pooling": {"input": "Hello"},
    "/v1/systemone": {"state": "Hello", "questions": {"a": {"type": "choice", "criteria": {"b": None, "c": "d"}}}},
    "/v1/decisions": {"input": "Hello", "questions": [{"type": "predicate", "instructions": "a"}]},
    "/v1/messages": {"messages": [USER], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/api/chat": {"messages": [USER], "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hello", "options": {"num_predict": 2}},
    "/api/embed": {"input": "Hello"},
    "/api/embeddings": {"prompt": "Hello"},
    "/api/show": {},
    "/api/pull": {},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1]},
}
ADMINISTRATION: dict[str, dict[str, Any]] = {
    "/update_weights": {"model_path": "none", "in_flight": "finish"},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "none", "load_inplace": True, "base_model_name": "fake"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/pause?mode={}": {},
    "/sleep?mode={}": {},
    "/sleep?level={}": {},
    "/wake_up?model={}": {},
}
"""Paths of administrators with their bodies; `{}` is the place of a value in the query."""
FIELDS = (
    *SAMPLING,
    *NEUTRAL,
    *("messages", "prompt", "input", "tokens", "model", "n", "stream", "stream_options", "max_tokens", "echo"),
    *("max_completion_tokens", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "guided_json"),
    *("guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "chat_template_kwargs", "suffix"),
    *("continue_final_message", "add_generation_prompt", "reasoning_effort", "encoding_format", "dimensions", "user"),
    *(
        "text",
        "reasoning",
        "include",
        "instructions",
        "max_output_tokens",
        "parallel_tool_calls",
        "return_token_strs",
        "add_special_tokens",
        "functions",
        "query",
        "documents",
        "texts",
        "top_n",
        "instruction",
        "text_1",
        "queries",
        "max_tokens_per_doc",
        "task",
        "use_activation",
        "truncate_prompt_tokens",
        "truncation_side",
        "content",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "system",
        "thinking",
        "stop_sequences",
        "output_config",
        "options",
        "format",
        "think",
        "context",
        "raw",
        "truncate",
    ),
)
TELLING: list[Any] = [
    *(
        0,
        1,
        2,
        -1,
        0.5,
        1e-9,
        1e300,
        -1e300,
        2**31,
        2**63,
        2**64,
        -(2**70),
        True,
        False,
        None,
        "",
        "a",
        "\x00",
        "\ud800",
    ),
    *(
        "auto",
        "none",
        "required",
        "json_object",
        "Hello",
        "é😀",
        [],
        {},
        [[]],
        [{}],
        [0],
        [[0]],
        ["a"],
        [None],
        [1, "a"],
    ),
    *({"type": "json_object"}, {"type": "text"}, {"a": 1}, {"1": 5}, {"1": "x"}, {"include_usage": True}, [USER]),
    *(
        [{**USER, "role": "assistant", "tool_calls": [{}]}],
        [{**USER, "content": [{"type": "image_url"}]}],
        [{"role": 1}],
    ),
    *(
        [{"type": "function", "function": {"name": "f"}}],
        {"type": "function", "function": {"name": "f"}},
        "((((",
        "a{9}",
    ),
    *({"type": "enabled"}, {"effort": "max"}, {"format": {"type": "json_schema", "schema": {"type": "integer"}}}),
    *({"type": "any"}, [{"name": "f", "input_schema": {}}], [{"type": "image"}], [{"type": "text", "text": "a"}]),
    *({"num_predict": 1}, {"num_predict": "a"}, {"seed": -5}, {"temperature": 0, "top_k": 2**31}, {"stop": 5}),
    [{**USER, "role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}, {"role": "tool"}],
    [{**USER, "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{}]}]}],
    [{**USER, "role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}],
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": "a"}}},
    *({"type": "object", "patternProperties": {"(": 1}}, {"regex": "["}, {"grammar": "start:"}, {"choice": [1]}),
]
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
anything = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
values = st.sampled_from(TELLING) | anything
fields = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), values, max_size=5)

texts = st.text(max_size=20)
ids = st.lists(st.integers(0, 255), min_size=1, max_size=40)
chats = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}))
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
SAMPLED: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 300),
    "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 2),
    "logit_bias": st.dictionaries(st.integers(0, 255).map(str), st.floats(-100, 100), max_size=3),
    "seed": st.integers(0, 2**63),
    "stop": texts | st.lists(texts, max_size=4),
    "stop_token_ids": ids,
    "bad_words": st.lists(texts, max_size=2),
    "allowed_token_ids": ids,
    "min_tokens": st.integers(0, 3),
    "ignore_eos": st.booleans(),
    "cache_salt": texts,
    "n": st.integers(1, 3),
    "max_tokens": st.integers(0, 9),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "guided_regex": st.sampled_from(["a{9}", "(yes|no)", "[0-9]+"]),
    "guided_choice": st.lists(st.text("abc", min_size=1), min_size=1, max_size=3),
    "guided_json": st.just(SCHEMA),
    "user": texts,
    "prompt_logprobs": st.integers(-1, 3),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "echo": st.booleans(),
}
CHATTED: dict[str, st.SearchStrategy[Any]] = {
    "messages": chats,
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 5),
    "tools": st.just(TOOLS),
    "tool_choice": st.sampled_from(["auto", "none", "required"]),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    "continue_final_message": st.booleans(),
}
MESSAGES: dict[str, st.SearchStrategy[Any]] = {
    "messages": chats,
    "system": texts | st.just([{"type": "text", "text": "Be brief."}]),
    "tools": st.just([{"name": "f", "input_schema": SCHEMA}]),
    "tool_choice": st.sampled_from([{"type": "auto"}, {"type": "none"}, {"type": "any"}]),
    "thinking": st.sampled_from([{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}]),
}
OLLAMA: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "format": st.sampled_from(["", "json", SCHEMA]),
    "think": st.sampled_from([True, False, "low"]),
    "keep_alive": st.sampled_from(["5m", 0]),
    "logprobs": st.booleans(),
    "options": st.fixed_dictionaries(
        {"num_predict": st.integers(0, 9)},
        optional={name: SAMPLED[name] for name in ("temperature", "top_p", "top_k", "seed", "stop")},
    ),
}
FITTING: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "/v1/chat/completions": SAMPLED | CHATTED,
    "/v1/completions": {
        **SAMPLED,
        "prompt": texts | ids | st.lists(texts, max_size=3) | st.lists(ids, max_size=3),
        "logprobs": st.integers(0, 5),
    },
    "/v1/responses": {
        **{name: SAMPLED[name] for name in ("temperature", "top_p", "stream", "user", "seed")},
        "input": texts | chats,
        "instructions": texts,
        "max_output_tokens": st.integers(1, 9),
        "top_logprobs": st.integers(0, 5),
        "tools": st.just([{"type": "function", "name": "f", "parameters": SCHEMA}]),
        "text": st.sampled_from([{"format": {"type": "text"}}, {"format": {"type": "json_object"}}]),
    },
    "/v1/embeddings": {
        "input": texts | ids | st.lists(texts, max_size=3) | st.lists(ids, max_size=3),
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.integers(1, 9),
        "cache_salt": texts,
        "truncate_prompt_tokens": st.integers(-1, 9),
        "add_special_tokens": st.booleans(),
    },
    "/rerank": {
        "query": texts,
        "documents": st.lists(texts, max_size=3) | st.lists(st.fixed_dictionaries({"text": texts}), max_size=3),
        "texts": st.lists(texts, max_size=3),
        "top_n": st.integers(0, 5),
        "return_documents": st.booleans(),
        "instruction": texts,
        "max_tokens_per_doc": st.integers(0, 5),
        "cache_salt": texts,
    },
    "/score": {
        "text_1": texts | st.lists(texts, max_size=2),
        "text_2": texts | st.lists(texts, max_size=2),
        "instruction": texts,
        "max_tokens_per_query": st.integers(0, 5),
    },
    "/classify": {
        "input": texts | ids | st.lists(texts | ids, max_size=3),
        "use_activation": st.booleans(),
        "cache_salt": texts,
    },
    "/pooling": {
        "input": texts | ids | st.lists(texts | ids, max_size=3),
        "task": st.sampled_from(["embed", "classify"]),
        "use_activation": st.booleans(),
        "dimensions": st.integers(1, 9),
    },
    "/v1/systemone": {
        "state": texts | chats,
        "questions": st.dictionaries(
            texts,
            st.fixed_dictionaries(
                {"type": st.sampled_from(["choice", "noul", "score"])},
                optional={
                    "instructions": texts,
                    "criteria": st.lists(texts) | st.dictionaries(texts, texts | st.none()),
                },
            ),
            max_size=3,
        ),
        "instructions": texts,
        "cache_salt": texts,
    },
    "/v1/decisions": {
        "input": texts | chats,
        "questions": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["predicate", "choice", "score"]), "instructions": texts},
                optional={
                    "choices": st.lists(st.fixed_dictionaries({"value": texts | st.booleans()}), max_size=3),
                    "levels": st.lists(st.fixed_dictionaries({"label": texts}), max_size=3),
                },
            ),
            max_size=3,
        ),
    },
    "/v1/messages": {
        **MESSAGES,
        **{name: SAMPLED[name] for name in ("temperature", "top_p", "top_k", "stream", "max_tokens")},
        "stop_sequences": st.lists(texts, max_size=3),
        "output_config": st.sampled_from([{"effort": "low"}, {"format": {"type": "json_schema", "schema": SCHEMA}}]),
    },
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": {**OLLAMA, "messages": chats, "tools": st.just(TOOLS)},
    "/api/generate": {**OLLAMA, "prompt": texts, "system": texts, "raw": st.booleans(), "context": ids},
    "/api/embed": {"input": texts | st.lists(texts, max_size=3), "truncate": st.booleans()},
    "/api/embeddings": {"prompt": texts},
    "/api/show": {"verbose": st.booleans()},
    "/api/pull": {"stream": st.booleans()},
    "/tokenize": {
        "prompt": texts,
        "messages": chats,
        "return_token_strs": st.booleans(),
        "add_special_tokens": st.booleans(),
    },
    "/detokenize": {"tokens": ids},
}
"""Values, each valid by itself; several together may be refused."""


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a path and a body of mostly valid fields, perhaps with an invalid one."""
    path = draw(st.sampled_from(sorted(BODIES)))
    names = draw(st.lists(st.sampled_from(sorted(FITTING[path])), max_size=4, unique=True))
    body = {**BODIES[path], **{name: draw(FITTING[path][name]) for name in names}}
    return path, body | draw(st.just({}) | st.dictionaries(st.sampled_from(FIELDS), values, max_size=1))


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(max_context=512, num_pages=128, page_size=16)
    ends = range(0, 256, 8)  # a random body seldom bounds its answer: each would be of all the context
    loaded = fake_loaded_engine(limits, tokenizer=byte_tokenizer, eos_ids=ends)
    head = Uses(classifier=Classifier(np.full((1, 1), 0.01, np.float32), ("relevant",), "sigmoid"))
    with fake_session(replace(loaded, checkpoint=replace(loaded.checkpoint, uses=head))) as session:
        yield session


def check(session: Session, path: str, body: Any) -> int:
    return check_all(session, [(path, body)])[0]


def check_all(session: Session, cases: Iterable[tuple[str, Any]]) -> list[int]:
    """Send bodies to paths, one after the other; check each answer, and the session at the end. Return the statuses."""

    async def send() -> list[int]:
        server, key = app(session, limits=Limits(prompts=64), admin_keys=["key"]), {"authorization": "Bearer key"}
        return [check_reply(path, body, await ask(server, path, body, headers=key)) for path, body in cases]

    statuses = anyio.run(send)
    ended_blocking(session)
    assert_all_is_free(session)
    return statuses


def check_reply(path: str, body: Any, reply: Reply) -> int:
    """Check for an answer or a refusal in the form of the API, and return the status."""
    assert reply.complete
    assert reply.status in (200, 400, 404), (path, body, reply.body)
    if reply.status != 200 and path.startswith("/api/"):
        assert reply.json == {"error": reply.error}
        assert isinstance(reply.error, str)
    elif reply.status != 200:
        form = {"type", "message"} if path.startswith("/v1/messages") else {"message", "type", "param", "code"}
        assert set(reply.error) - {"details"} == form
    elif reply.headers["content-type"] == "application/json":
        assert reply.json
    else:
        assert reply.body.startswith((b"data: ", b"event: ", b": ", b'{"'))  # a comment where the first event is late
    return reply.status


@given(st.sampled_from(sorted(BODIES)), fields)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_body_with_any_fields_never_makes_the_server_fail(session: Session, path: str, extra: dict[str, Any]) -> None:
    check(session, path, {**BODIES[path], **extra})


@given(bodies())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_body_that_nearly_fits_never_makes_the_server_fail(
    session: Session, case: tuple[str, dict[str, Any]]
) -> None:
    check(session, *case)


@pytest.mark.deep
def test_two_thousand_bodies_never_make_the_server_fail(session: Session) -> None:
    statuses = Counter[int]()

    @given(bodies() | st.sampled_from(sorted(BODIES)).flatmap(lambda path: st.tuples(st.just(path), fields)))
    @settings(max_examples=2000, derandomize=False)
    def fuzzed(case: tuple[str, dict[str, Any]]) -> None:
        path, own = case
        statuses[check(session, path, {**BODIES[path], **own})] += 1

    fuzzed()
    assert statuses[200] > 200, statuses


@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=40))
@settings(max_examples=20)
def test_bytes_that_are_no_body_are_refused(session: Session, path: str, body: bytes) -> None:
    check(session, path, body)


@pytest.mark.parametrize("value", TELLING, ids=lambda value: f"{value!r:.30}")
def test_no_value_of_a_single_field_makes_the_server_fail(session: Session, value: Any) -> None:
    for name in ("messages", "tools", "response_format", "stop", "logit_bias", "chat_template_kwargs"):
        body = {"max_tokens": 1, "messages": [USER], name: value}
        check(session, "/v1/chat/completions", body)


@pytest.mark.parametrize("path", ADMINISTRATION)
def test_no_value_makes_administration_fail(session: Session, path: str) -> None:
    body = ADMINISTRATION[path]
    for value in TELLING:
        text = quote(f"{value}", errors="replace")
        for fields in [{name: value} for name in (*body, "model")] if body else [{}]:
            check(session, path.format(text), {**body, **fields})
    check(session, "/wake_up", {})
