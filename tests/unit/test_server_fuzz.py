"""Whatever a body has, it is served or refused, and leaves nothing behind."""

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.models.text.tokenizer import Tokenizer
from rekindle.server import Limits, app
from rekindle.server.reading.call import NEUTRAL, SAMPLING
from rekindle.session.session import Session
from rekindle.testing import fake_assembly, fake_limits, fake_session
from tests.unit.asgi import ask
from tests.unit.sessions import assert_all_is_free

USER = {"role": "user", "content": "Hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/v1/embeddings": {"input": "Hello"},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1]},
}
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
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": "a"}}},
    *({"type": "object", "patternProperties": {"(": 1}}, {"regex": "["}, {"grammar": "start:"}, {"choice": [1]}),
]
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
anything = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
values = st.sampled_from(TELLING) | anything
fields = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), values, max_size=5)


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(max_context=256, num_pages=64, page_size=16)
    with fake_session(fake_assembly(limits, tokenizer=byte_tokenizer)) as session:
        yield session


def check(session: Session, path: str, body: Any) -> None:
    reply = anyio.run(ask, app(session, limits=Limits(prompts=64)), path, body)
    assert reply.complete
    assert reply.status in (200, 400, 404), reply.body
    if reply.status != 200:
        assert set(reply.error) == {"message", "type", "param", "code"}
    elif reply.headers["content-type"] == "application/json":
        assert reply.json
    else:
        assert reply.body.startswith((b"data: ", b"event: "))
    while session.stats.scheduler.running or session.stats.scheduler.waiting:
        session.count_tokens("a")
    assert_all_is_free(session)


@given(st.sampled_from(sorted(BODIES)), fields)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_body_with_any_fields_never_makes_the_server_fail(session: Session, path: str, given: dict[str, Any]) -> None:
    check(session, path, {**BODIES[path], **given})


@pytest.mark.deep
@given(st.sampled_from(sorted(BODIES)), fields)
@settings(max_examples=2000, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_thousand_bodies_never_make_the_server_fail(session: Session, path: str, given: dict[str, Any]) -> None:
    check(session, path, {**BODIES[path], **given})


@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=40))
@settings(max_examples=20)
def test_bytes_that_are_no_body_are_refused(session: Session, path: str, given: bytes) -> None:
    check(session, path, given)


@pytest.mark.parametrize("value", TELLING, ids=lambda value: f"{value!r:.30}")
def test_no_value_of_a_single_field_makes_the_server_fail(session: Session, value: Any) -> None:
    for name in ("messages", "tools", "response_format", "stop", "logit_bias", "chat_template_kwargs"):
        body = {"max_tokens": 1, "messages": [USER], name: value}
        check(session, "/v1/chat/completions", body)
