"""The pieces of a call are its arguments as JSON, whatever the model writes and wherever it is cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.formats.responses.calls import calls_of
from rekindle.formats.responses.forms.objects import CALL_BY_NAME, CALL_IN_LIST, COMMAND, HERMES
from rekindle.formats.responses.reading.call_pieces import CallKeys, CallPieces, remainder

KINDS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "rest": {},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"properties": KINDS}}} for name in ("f", "g")]
OBJECT, ALONE = CallKeys.of("json", {}, HERMES["transform"]), CallKeys.of("json", {}, CALL_BY_NAME)


def pieces(text: str, size: int, keys: CallKeys | None = OBJECT, name: str | None = None) -> dict[int, tuple[str, str]]:
    """Return the function and the arguments of each call in a text that comes in pieces."""
    assert keys is not None
    reader, calls = CallPieces(keys, name, TOOLS), dict[int, tuple[str, str]]()
    for at in range(0, len(text), size):
        for place, function, piece in reader.feed(text[at : at + size]):
            calls[place] = function, calls.get(place, ("", ""))[1] + piece
    assert all(reader.text_of(place) == arguments for place, (_, arguments) in calls.items())
    return calls


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TEXTS = st.text() | st.sampled_from(["null", " None ", "nul", "3", "[1]", "true", "-0.5", "nulls", "None of it"])
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"text": TEXTS, "count": TEXTS | st.integers(), "name": TEXTS | st.none(), "rest": JSON, "x": JSON}
)


@settings(deadline=None)
@given(arguments=ARGUMENTS, size=st.integers(1, 9), ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_the_pieces_make_the_arguments(arguments: Any, size: int, ascii_only: bool, indent: int | None) -> None:
    value = {"name": "f", "arguments": arguments}
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    (call,) = calls_of(value, text, "", TOOLS)
    whole = json.dumps(call.arguments, ensure_ascii=False)
    for keys, name, each in ((OBJECT, None, text), (ALONE, "f", json.dumps(arguments, ensure_ascii=ascii_only))):
        function, prefix = pieces(each, size, keys, name)[0]
        assert (function, prefix + "}") == ("f", whole)
        assert remainder(call.arguments, prefix) == "}"


def test_calls_in_lists_and_in_a_row_are_told_apart() -> None:
    calls = [{"name": "f", "arguments": {"text": "a"}}, {"name": "g", "parameters": {}}]
    for text in (json.dumps(calls), "; ".join(map(json.dumps, calls))):
        assert pieces(text, 2) == {0: ("f", '{"text": "a"'), 1: ("g", "{")}
    keys = CallKeys.of("json", {}, COMMAND["transform"])
    text = '[{"tool_call_id": "0", "tool_name": "g", "parameters": {"rest": [{}]}}]'
    assert pieces(text, 3, keys) == {0: ("g", '{"rest": [{}]')}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "h", "arguments": {"text": "a"}}',
        '{"arguments": {"text": "a"}, "name": "f"}',
        '{"function": {"name": "f", "arguments": {}}}',
        '{"name": "f", "arguments": "{}"}',
        '{"x": {"name": "f", "arguments": {}}}',
        "oops",
    ],
)
def test_other_calls_come_whole(text: str) -> None:
    assert pieces(text, 1) == {}


def test_a_line_end_in_a_string_is_escaped_and_a_broken_call_stops() -> None:
    assert pieces('{"name": "f", "arguments": {"text": "a\nb"}}', 4)[0][1] == '{"text": "a\\nb"'
    for broken in ('{"text": "a\\q', '{"count": nope,', '{"rest": [1}'):
        prefix = pieces(f'{{"name": "f", "arguments": {broken} more', 1)[0][1]
        with pytest.raises(json.JSONDecodeError):
            json.loads(prefix)


def test_formats_whose_arguments_are_no_json_have_no_pieces() -> None:
    assert CallKeys.of("xml-inline", {}, CALL_BY_NAME) is None
    assert CallKeys.of("json", {"unquoted_keys": True}, CALL_BY_NAME) is None
    assert CallKeys.of("json", {}, CALL_IN_LIST) == CallKeys("name", ("arguments",))
    assert CallKeys.of("json", {}, None) is None
