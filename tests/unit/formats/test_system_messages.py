"""Every system and developer message reaches the prompt, in its place or beside it, by any chat template."""

from typing import Any

import pytest

from rekindle.formats.rendering.chat import render

TURN = "<{{ m.role }}>{{ m.content or '' }}"
ANYWHERE = "{% for m in messages %}" + TURN + "{% endfor %}"
FIRST_ALONE = (  # as of gpt-oss, Gemma 3 and Qwen3-VL: later ones are passed over in silence
    "{% if messages[0].role in ['system', 'developer'] %}<developer>{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages if m.role not in ['system', 'developer'] %}" + TURN + "{% endfor %}"
)
REFUSES = (
    "{% if m.role == 'developer' or m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
)
STRICT = "{% for m in messages %}" + REFUSES + TURN + "{% endfor %}"  # as of Qwen3.5
ALTERNATING = (  # as of Gemma 2: neither system messages nor two turns of one side
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    + TURN
    + "{% endfor %}"
)
HOISTING = (  # as of DeepSeek V3: all of them before the first turn
    "{% for m in messages if m.role == 'system' %}<system>{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role in ['user', 'assistant'] %}" + TURN + "{% endfor %}"
)
PARTS_ALONE = (
    "{% for m in messages %}" + REFUSES + "<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
)
QWEN3 = (  # the reasoning of answers before the last question is left out, as by Qwen3 to Qwen3.8
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('late') }}{% endif %}<{{ m.role }}>"
    "{% if m.reasoning_content and loop.index0 > ns.last %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{% endfor %}{% if tools %}{% endif %}"
)


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def developer(text: Any) -> dict[str, Any]:
    return {"role": "developer", "content": text}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


LEADING = [system("A"), developer("B"), user("hi")]
LATE = [system("A"), user("hi"), answer("yo"), system("B"), user("go"), developer("C")]


@pytest.mark.parametrize(
    ("template", "leading", "late"),
    [
        (ANYWHERE, "<system>A<developer>B<user>hi", "<system>A<user>hi<assistant>yo<system>B<user>go<developer>C"),
        (FIRST_ALONE, "<developer>A\n\nB<user>hi", "<developer>A<user>hi<assistant>yo<user>B\n\ngo\n\nC"),
        (STRICT, "<system>A\n\nB<user>hi", "<system>A<user>hi<assistant>yo<user>B\n\ngo\n\nC"),
        (ALTERNATING, "<user>A\n\nB\n\nhi", "<user>A\n\nhi<assistant>yo<user>B\n\ngo\n\nC"),
        (HOISTING, "<system>A<system>B<user>hi", "<system>A<user>hi<assistant>yo<user>B\n\ngo\n\nC"),
        (PARTS_ALONE, "<system>A\n\nB<user>hi", "<system>A<user>hi<assistant>yo<user>B\n\ngo\n\nC"),
    ],
    ids=["anywhere", "first alone", "strict", "alternating", "hoisting", "parts alone"],
)
def test_no_instruction_is_lost_or_refused(template: str, leading: str, late: str) -> None:
    assert render(LEADING, template) == leading
    assert render(LATE, template) == late


def test_a_text_in_parts_is_joined_with_lines_between() -> None:
    parts = [{"type": "text", "text": "B"}, {"type": "text", "text": "C"}]
    assert render([system("A"), system(parts), user("hi")], STRICT) == "<system>A\n\nB\nC<user>hi"
    assert render([user([{"type": "text", "text": "hi"}]), system("A")], PARTS_ALONE) == "<user>hi\n\nA"


def test_instructions_alone_and_behind_an_answer_become_a_turn() -> None:
    assert render([system("A")], ALTERNATING) == "<user>A"
    assert render([user("hi"), answer("yo"), system("A")], STRICT) == "<user>hi<assistant>yo<user>A"
    assert render([user("hi"), answer("yo"), system("A"), answer("la")], STRICT).endswith("<user>A<assistant>la")


def test_a_reminder_behind_a_result_is_in_the_result_and_keeps_the_reasoning() -> None:
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": {}}}
    step = {**answer(""), "reasoning_content": "I look", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    expected = "<user>hi<assistant>(I look)[look]<tool>sunny\n\nBe brief."
    assert render([user("hi"), step, result, system("Be brief.")], QWEN3) == expected
    assert render([user("hi"), step, system("Be brief."), result], QWEN3) == expected  # between call and result
    empty = {**result, "content": ""}
    assert render([user("hi"), step, empty, system("Be brief.")], QWEN3).endswith("<tool>Be brief.")


def test_a_template_that_the_probe_does_not_fit_gets_the_messages_as_they_are() -> None:
    picky = "{% if messages | length != 3 %}{{ raise_exception('three') }}{% endif %}" + ANYWHERE
    assert render([system("A"), system("B"), user("hi")], picky) == "<system>A<system>B<user>hi"


def test_many_instructions_are_one_message() -> None:
    many = [system(str(number)) for number in range(9)]
    assert render([*many, user("hi")], ANYWHERE) == "<system>" + "\n\n".join("012345678") + "<user>hi"
