"""Templates read answers as transformers does, in pieces of any size."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.errors import CheckpointError
from rekindle.formats.responses.calls import calls_of
from rekindle.formats.responses.contents import Malformed, parse
from rekindle.formats.responses.families import template_for
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.region import FieldEnd, FieldText
from rekindle.formats.responses.template import ResponseTemplate, load
from tests.unit.response_cases import CASES, QWEN, Case

GOLDENS = json.loads((Path(__file__).parents[2] / "goldens" / "responses.json").read_text(encoding="utf-8"))["messages"]


def template_of(case: Case) -> ResponseTemplate:
    return load(case.own or template_for(case.marks, None))


def read(case: Case, pieces: list[str]) -> tuple[dict[str, Any], list[FieldEnd], dict[str, str]]:
    """Return the message, the ends of fields, and the texts by field."""
    parser = ResponseParser(template_of(case), case.prompt)
    events = [*parser.prompt_events]
    for piece in pieces:
        events += parser.feed(piece)
    message, last = parser.finish()
    texts: dict[str, str] = {}
    for event in [*events, *last]:
        if isinstance(event, FieldText):
            texts[event.field] = texts.get(event.field, "") + event.text
    return message, [event for event in [*events, *last] if isinstance(event, FieldEnd)], texts


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_read_as_transformers_reads_it(name: str) -> None:
    case = CASES[name]
    message, closed, _ = read(case, [case.text])
    assert message == GOLDENS[name]
    assert [part.error for part in closed if part.error] == []


@given(st.data())
@settings(deadline=None)
def test_how_an_answer_is_cut_changes_nothing(data: st.DataObject) -> None:
    case = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(case.text)), max_size=12)))
    pieces = [case.text[a:b] for a, b in zip([0, *cuts], [*cuts, len(case.text)], strict=True)]
    assert read(case, pieces) == read(case, [case.text])
    assert read(case, list(case.text)) == read(case, [case.text])


SCRAPS = st.lists(
    st.sampled_from(
        [*"<>/{}[]|\n ", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "a", '{"name": "f"}']
    )
)


@given(SCRAPS, st.sampled_from(sorted({case.marks for case in CASES.values() if case.marks})), st.integers(1, 9))
@settings(deadline=None)
def test_no_answer_is_so_odd_that_its_cuts_change_it_or_that_reading_it_fails(
    scraps: list[str], marks: str, size: int
) -> None:
    text = "".join(scraps)
    case = Case(marks, text)
    assert read(case, [text[at : at + size] for at in range(0, len(text), size)]) == read(case, [text])


@pytest.mark.parametrize(
    ("name", "end"),
    [("qwen calls", "\n</tool_call><|im_end|>"), ("coder calls", "\n</tool_call><|im_end|>")],
)
def test_a_closing_mark_that_is_cut_behind_a_whole_call_is_no_content(name: str, end: str) -> None:
    case = CASES[name]
    assert case.text.endswith(end)
    for length in range(len(end.removesuffix("<|im_end|>")) + 1):
        text = case.text.removesuffix(end) + end[:length]
        for pieces in ([text], list(text)):
            message, closed, _ = read(case, pieces)
            assert [part.error for part in closed if part.error] == []
            assert message["tool_calls"] == GOLDENS[name]["tool_calls"]
            assert message["content"].strip() == GOLDENS[name]["content"].strip()


def test_a_mark_that_is_cut_within_a_call_ends_no_call() -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "</tool'
    message, closed, _ = read(Case(QWEN, text), [text])
    assert "tool_calls" not in message
    assert [part.raw for part in closed if part.error] == [text]


@pytest.mark.parametrize("name", CASES)
def test_the_texts_that_grow_are_the_values_of_the_message(name: str) -> None:
    case = CASES[name]
    message, _, texts = read(case, list(case.text))
    for field in ("thinking", "content"):
        assert message.get(field, "").strip() == texts.get(field, "").strip()


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_deep_value_is_malformed_and_reading_goes_on(depth: int) -> None:
    for start, end in (("1+", "1"), ("-", "1"), ("x.", "y"), ("(", "1" + ")" * depth), ("[", "]" * depth)):
        with pytest.raises(Malformed):
            parse("python-calls", f"[f(a={start * depth}{end})]", {})
    deep = "[" * 100_000
    (call,) = calls_of({"name": "f", "arguments": deep}, "raw", "")
    assert call.error is not None
    schema = {"type": "object", "properties": {"a": {"type": "array"}}}
    (call,) = calls_of({"name": "f", "arguments": {"a": deep}}, "raw", "", [{"name": "f", "parameters": schema}])
    assert call.arguments == {"a": deep}


def test_a_call_that_is_no_json_is_told_with_all_of_its_text_and_the_others_are_read() -> None:
    good = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    message, closed, _ = read(Case(QWEN, ""), [f"<tool_call>{{oops</tool_call>{good}<tool_call>cut"])
    bad = [part for part in closed if part.error]
    assert [part.raw for part in bad] == ["<tool_call>{oops</tool_call>", "<tool_call>cut"]
    assert "expected JSON, got '{oops'" in str(bad[0].error)
    assert len(message["tool_calls"]) == 1


FIELDS: dict[str, Any] = {"content": {}}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ([], "must be an object"),
        ({"version": 2}, "must be of version 1"),
        ({"start_anchor": "A", "fields": FIELDS, "more": 1}, "unknown keys more"),
        ({"start_anchor": "A", "fields": {}}, "at least one field"),
        ({"fields": FIELDS}, "must have start_anchor"),
        ({"start_anchor": "", "fields": FIELDS}, "none empty"),
        ({"start_anchor": "A", "start_anchor_pattern": "A", "fields": FIELDS}, "and not both"),
        ({"start_anchor_pattern": "(", "fields": FIELDS}, "regular expression"),
        ({"start_anchor": "A", "fields": {"a": {}, "b": {}}}, "at most one field"),
        ({"start_anchor": "A", "fields": {"a": {"content": "yaml"}}}, "content must be one of"),
        ({"start_anchor": "A", "fields": {"a": {"content": "xml-inline"}}}, "tag_pattern"),
        ({"start_anchor": "A", "fields": {"a": {"join": " "}}}, "needs repeats"),
        ({"start_anchor": "A", "fields": {"a": {"transform_each": True}}}, "needs a transform"),
        (
            {"start_anchor": "A", "fields": {"a": {"transform": "x {content}"}}},
            "must be one placeholder or contain none",
        ),
    ],
)
def test_a_template_of_another_form_says_where(template: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(template)
