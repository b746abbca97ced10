"""A call in a history renders by any chat template, whatever its arguments are: some answers end inside a call."""

from typing import Any

import pytest

from rekindle.formats.rendering.chat import render
from rekindle.server import app
from tests.unit.asgi import ask
from tests.unit.scripted import HERMES, Serve

pytestmark = pytest.mark.anyio

LOOP = "{% for m in messages %}[{{ m.content or '' }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}:"
ITEMS = LOOP + "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }} {% endfor %}>{% endfor %}]{% endfor %}"
JSON = LOOP + "{{ c.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
EITHER = LOOP + "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}>{% endfor %}]{% endfor %}"
TEXTS = LOOP + "{{ '' + c.function.arguments }}>{% endfor %}]{% endfor %}"
USER = {"role": "user", "content": "hi"}


def rendered(template: str, arguments: Any) -> str:
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": arguments}}
    text = render([USER, {"role": "assistant", "content": None, "tool_calls": [call]}], template)
    return text.removeprefix("[hi][<f:").removesuffix(">]")


@pytest.mark.parametrize(
    ("arguments", "items", "either", "texts"),
    [
        ({"a": 1}, "a=1 ", '{"a": 1}', None),
        ('{"a": 1}', "a=1 ", '{"a": 1}', '{"a": 1}'),
        ("{", "", "{", "{"),
        ("{}{}", "", "{}{}", "{}{}"),
        ("", "", "", ""),
        ("[]", "", "[]", "[]"),
        ([], "", "[]", "[]"),
        (None, "", "{}", "{}"),
        (3, "", "3", "3"),
        ("[" * 100_000, "", "[" * 100_000, "[" * 100_000),
    ],
    ids=["object", "text", "cut", "two", "empty", "list as text", "list", "null", "number", "deep"],
)
def test_arguments_render_as_they_are_as_text_or_empty(
    arguments: Any, items: str, either: str, texts: str | None
) -> None:
    assert rendered(ITEMS, arguments) == items
    assert rendered(EITHER, arguments) == either
    if texts is not None:
        assert rendered(TEXTS, arguments) == texts


def test_a_text_of_an_object_stays_a_text_for_a_template_that_writes_it() -> None:
    assert rendered(JSON, {"a": 1}) == '{"a": 1}'


@pytest.mark.parametrize("arguments", ["{", "", None, "[]", "{}{}", '{"city": "Rome"}'])
async def test_a_history_with_a_cut_call_goes_on_in_all_apis(serve: Serve, arguments: Any) -> None:
    loop = "{% for k, v in c.function.arguments | items %}{{ k }}{% endfor %}"
    items = HERMES.replace("{{ c.function | tojson }}", loop)
    application = app(serve("ok", items))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    past = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {**USER, "content": "go on"}]
    asks: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": past}),
        ("/api/chat", {"messages": past, "stream": False}),
        (
            "/v1/responses",
            {"input": [USER, {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}, USER]},
        ),
    ]
    for path, body in asks:
        assert (await ask(application, path, body)).status == 200, path
