"""The chat template decides the format of answers, and messages go back in its form."""

import json
from pathlib import Path
from typing import Any

import pytest

from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.rendering.chat import render
from rekindle.formats.response import MessageForm, Response, ToolCall
from rekindle.formats.responses.families import template_for
from rekindle.formats.responses.formats import PLAIN, format_of
from rekindle.formats.responses.forms.objects import HERMES as HERMES_CALLS
from rekindle.formats.responses.reading.reader import TemplateReading
from tests.unit.response_cases import CASES, HARMONY, QWEN
from tests.unit.scripted import HERMES, tokenizer

CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
ENDS = "{% endfor %}{% endfor %}"
OWN = {"start_anchor": "A:", "fields": {"thinking": {"open": "<t>", "close": "</t>"}, "content": {}}}


def of(template: str | None, own: Any = None) -> Any:
    return format_of(Tokenizer(tokenizer().backend, chat_template=template, response_template=own))


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (CALLS + "{{ c.function.arguments | tojson }}" + ENDS, MessageForm(None, False, False)),
        (CALLS + "{{ c.function.name + c.function.arguments }}" + ENDS, MessageForm(None, True, False)),
        (CALLS + "{{ c.function.arguments }}" + ENDS, MessageForm(None, True, False)),
        (
            "{% for m in messages %}{% if m.content is not none %}{{ m.content + '|' }}{% endif %}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}" + ENDS,
            MessageForm(None, False, True),
        ),
        (HERMES, MessageForm("reasoning_content", False, True)),
        ("{{ messages[0]['thinking'] }}<think>", MessageForm("thinking", False, False)),
        ("{% if thinking %}<think>{% endif %}{{ messages[0].content }}", MessageForm(None, False, False)),
    ],
)
def test_a_message_has_the_form_that_the_template_reads(template: str, form: MessageForm) -> None:
    assert of(template).form == form
    call = ToolCall("f", {"a": "é"}, "", "call00000")
    message = Response("", "hm", (call,), form).message
    assert render([{"role": "user", "content": "x"}, message], template, variables={"add_generation_prompt": False})
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert (json.loads(arguments) if form.arguments_as_text else arguments) == {"a": "é"}


def test_a_model_that_marks_nothing_answers_in_plain_text() -> None:
    assert of(None) == PLAIN
    plain = of("{{ messages[0].content }}")
    assert (plain.is_plain, plain.tells_tools, plain.source["fields"]["tool_calls"]) == (True, True, HERMES_CALLS)
    assert of("{{ messages[0].content }}{{ tools }}").template is None


def test_a_checkpoints_own_template_comes_first_unless_it_cannot_be_read(tmp_path: Path) -> None:
    assert of(HERMES, OWN).source == OWN
    with pytest.warns(RuntimeWarning, match="own response template is not used: .* version 9"):
        assert of(HERMES + " ", {"version": 9}).source == template_for(HERMES + " ", None)
    tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": HERMES, "response_template": OWN}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = load_tokenizer(tmp_path)
    assert model is not None
    assert format_of(model).source == OWN


def test_an_answer_that_does_not_keep_to_its_format_is_not_lost() -> None:
    model = Tokenizer(tokenizer().backend, chat_template="<|channel|><|message|>")
    reading = TemplateReading(format_of(model), model, model.encode_chat("<|start|>assistant"))
    reading.push("I will.", model.encode_chat("I will."))
    response, parts = reading.finish()
    assert response.content == "".join(part.text for part in parts) == "I will."


@pytest.mark.parametrize(
    ("marks", "prompt", "text", "count"),
    [
        (QWEN, "", "Paris.", 0),
        (QWEN, "", "<think>\nOne.\n</think>\n\nParis.", len("\nOne.\n")),
        (QWEN, "<think>\n", "One.\n</think>\n\nParis.", len("One.\n")),
        (QWEN, "<think>\n\n</think>\n\n", "Paris.", 0),
        (QWEN, "", "<think>\nOn", len("\nOn")),
        (QWEN, "", "a<think>One</think>b<think>Two</think>", 0),
        (QWEN, "", "<think>One</think>b<think>Two</think>", len("One")),
        (QWEN, "", "<think>é</think>", len("é".encode())),
        (QWEN, "", "<think>" + "x" * 300 + "</think>" + "y" * 300, 300),
        (HARMONY, "", "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.", 4),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_tokens_of_reasoning_are_counted_without_its_marks(
    marks: str, prompt: str, text: str, count: int, size: int
) -> None:
    model = Tokenizer(tokenizer(every_byte=True).backend, chat_template=marks)
    header = "<|start|>assistant" if marks == HARMONY else "<|im_start|>assistant\n"
    reading = TemplateReading(format_of(model), model, model.encode_chat(header + prompt))
    decoder, tokens = IncrementalDecoder(model), model.encode_chat(text)
    for at in range(0, len(tokens), size):
        piece = tokens[at : at + size]
        reading.push("".join(map(decoder.push, piece)), piece)
    reading.finish()
    assert reading.reasoning_tokens() == count


def test_tokens_that_a_stop_string_cuts_off_reasoning_are_counted_with_it() -> None:
    model = Tokenizer(tokenizer().backend, chat_template=QWEN)
    reading = TemplateReading(format_of(model), model, model.encode_chat("<|im_start|>assistant\n"))
    reading.push("<think>On", model.encode_chat("<think>One."))
    assert reading.finish()[0].reasoning == "On"
    assert reading.reasoning_tokens() == len("One.")


def test_arguments_that_are_written_as_text_are_what_the_schema_says() -> None:
    case = CASES["coder calls"]
    model = Tokenizer(tokenizer().backend, chat_template=case.marks)
    kinds: dict[str, Any] = {"path": {"type": "string"}, "lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    tool = {"type": "function", "function": {"name": "find", "parameters": {"properties": kinds}}}
    untyped = {"type": "function", "function": {"name": "find"}}
    for tools, lines in (([tool], 3), ([untyped], "3")):
        reading = TemplateReading(format_of(model), model, model.encode_chat(case.prompt), tools=tools)
        reading.push(case.text.removesuffix("<|im_end|>"), model.encode_chat(case.text))
        (call,) = reading.finish()[0].tool_calls
        assert call.arguments == {"path": "/a b", "lines": lines}


def test_equal_calls_of_one_answer_have_ids_of_their_own() -> None:
    case = CASES["mistral calls"]
    model = Tokenizer(tokenizer().backend, chat_template=case.marks)
    reading = TemplateReading(format_of(model), model, model.encode_chat(case.prompt), tools=[{"name": "weather"}])
    reading.push(case.text, model.encode_chat(case.text))
    first, second = reading.finish()[0].tool_calls
    assert (first.name, first.arguments) == (second.name, second.arguments)
    assert first.id != second.id
    assert all(len(call.id) == 9 and call.id.isalnum() for call in (first, second))
