"""Chat templates run as they do in transformers, and cannot do harm."""

import json
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.rendering.chat import LONGEST_ROLE, check_messages, render, unread_variables

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}],
}
ANSWER = {"role": "tool", "content": "sunny"}
# This is a small template of the kind that Qwen has.
WITH_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""


def test_without_a_template_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"no chat template.*pass the prompt as str.*chat_template="):
        render([USER], None)


def test_the_generation_prompt_is_optional() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    assert render([USER], template) == "Hi>"
    assert render([USER], template, variables={"add_generation_prompt": False}) == "Hi"


def test_blocks_take_their_own_lines_with_them() -> None:
    template = (
        "{%- for m in messages %}\n    {% if m.role == 'user' %}\nU: {{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    )
    assert render([USER, USER], template) == "U: Hi\nU: Hi\n"


def test_a_last_newline_is_dropped() -> None:
    assert render([USER], "a\n") == "a"


def test_tokens_that_the_model_lacks_are_undefined() -> None:
    template = "{{ bos_token }}{% if eos_token is defined %}{{ eos_token }}{% endif %}"
    assert render([USER], template, "<s>", "</s>") == "<s></s>"
    assert render([USER], template, "<s>") == "<s>"


def test_json_is_not_escaped_for_html() -> None:
    assert render([USER | {"x": "<é&"}], "{{ messages[0].x | tojson }}") == '"<é&"'
    assert render([USER], "{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}") == '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'


def test_the_date_loop_controls_and_generation_blocks_are_there() -> None:
    assert len(render([USER], "{{ strftime_now('%Y') }}")) == 4
    assert render([USER, USER], "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}") == "Hi"
    assert render([USER], "a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHib"


def test_a_misspelt_role_is_refused_and_one_that_the_template_knows_is_not() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\] has the unknown role 'usr'; did you mean 'user'\?"):
        render([USER, USER | {"role": "usr"}], AS_TEXT)
    assert render([USER | {"role": "users"}], "users:{{ messages[0].content }}") == "users:Hi"
    assert render([USER | {"role": "critic"}], AS_TEXT) == "[critic]Hi"


def test_what_a_template_refuses_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        render([USER], "{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ 1 + 'a' }}", "{{ messages[0].nothing.at.all }}", "{{ [1][5].x }}"]
)
def test_a_template_that_fails_is_an_invalid_request(template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render([USER], template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}x{{ ''.__class__.__mro__[1] }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render([USER], template)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("Hi", "list of .*, got str"),
        (USER, "list of .*, got dict"),
        ([], "at least one"),
        (["Hi"], r"messages\[0\] must be a mapping .*got str"),
        ([USER, {"role": "user"}], r"messages\[1\] has no 'content'; it has \['role'\]"),
        ([{"content": "Hi"}], r"messages\[0\] has no 'role'"),
        ([{"role": "user", "content": None}], r"messages\[0\]\['content'\] must be str, got NoneType"),
    ],
)
def test_malformed_messages_say_where(messages: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        render(messages, "{{ messages }}")


def test_tools_and_their_calls_and_answers_reach_the_template() -> None:
    assert render([USER, CALL, ANSWER], WITH_TOOLS, tools=[TOOL]) == (
        "<|im_start|>system\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", "parameters": '
        '{"type": "object", "properties": {"city": {"type": "string"}}}}}'
        "\n</tools><|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>weather {"city": "Köln"}</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsunny<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_tools_the_template_sees_none() -> None:
    assert render([USER], WITH_TOOLS) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render([USER], "{{ tools is none }} {{ documents is none }}") == "True True"


def test_variables_reach_the_template_by_their_names() -> None:
    thinking = render([USER], WITH_TOOLS, variables={"enable_thinking": True})
    assert thinking == render([USER], WITH_TOOLS)
    assert render([USER], WITH_TOOLS, variables={"enable_thinking": False}) == thinking + "<think>\n\n</think>\n\n"
    assert render([USER], "{{ self_name }}{{ documents[0] }}", variables={"self_name": "a", "documents": ["b"]}) == "ab"


def test_variables_overrule_the_models_tokens() -> None:
    assert render([USER], "{{ bos_token }}{{ eos_token }}", "<s>", "</s>", variables={"bos_token": "<b>"}) == "<b></s>"


@pytest.mark.parametrize("call", [CALL, CALL | {"content": None}, CALL | {"content": ""}])
def test_a_message_that_calls_tools_may_have_nothing_to_say(call: Any) -> None:
    assert render([call], WITH_TOOLS) == render([CALL], WITH_TOOLS)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (CALL | {"role": "user"}, "has no 'content'"),
        (CALL | {"tool_calls": []}, "has no 'content'"),
        (CALL | {"tool_calls": None, "content": None}, "'content'.* must be str, got NoneType"),
        (CALL | {"content": 3}, "'content'.* must be str, got int"),
        ({"tool_calls": CALL["tool_calls"]}, "has no 'role'"),
        ({"role": "tool", "content": None}, "'content'.* must be str, got NoneType"),
    ],
)
def test_every_other_message_needs_its_content(message: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        render([message], WITH_TOOLS)


# Contents in parts


def parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


AS_TEXT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
LOOPS = [
    "{% for m in messages %}{% if m.content is string %}={{ m.content }}{% else %}"
    "{% for p in m.content %}<{{ p.type }}>{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if m['content'] is string %}={{ m['content'] }}{% else %}"
    "{% for p in m['content'] | list %}<{{ p.type }}>{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% set body = m.content %}{% if body is string %}={{ body }}{% else %}"
    "{% for p in body %}<{{ p.type }}>{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% macro said(content) %}{% if content is string %}={{ content }}{% else %}"
    "{% for p in content %}<{{ p.type }}>{{ p.text }}{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}{{ said(m.content) }}{% endfor %}",
]


PARTS_ALONE = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
BY_ROLE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '!' }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


def test_a_text_is_a_part_for_a_template_that_reads_parts_alone() -> None:
    assert render([USER, parts("a", "b")], PARTS_ALONE) == "<user>Hi<user>ab"


def test_each_role_has_the_form_that_the_template_writes_for_it() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]}
    assert render([system, USER], BY_ROLE) == "Be\nbrief!Hi"


def test_a_role_whose_words_the_template_leaves_out_is_refused() -> None:
    users_alone = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequest, match="drops the content of messages with role 'critic'"):
        render([{"role": "critic", "content": "Be brief."}, USER], users_alone)
    assert render([{"role": "system", "content": "Be brief."}, USER], users_alone) == "Be brief.\n\nHi"


def test_parts_are_one_text_for_a_template_that_writes_contents_as_they_are() -> None:
    assert render([parts("a", "b"), USER, parts("c")], AS_TEXT) == "[user]a\nb[user]Hi[user]c"
    no_loop = "{% for m in messages %}{% for line in m.content.split('a') %}({{ line }}){% endfor %}{% endfor %}"
    assert render([parts("xay")], no_loop) == "(x)(y)"


@pytest.mark.parametrize("template", LOOPS)
def test_parts_are_left_to_a_template_that_loops_over_them(template: str) -> None:
    assert render([parts("a", "b"), USER], template) == "<text>a<text>b=Hi"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], r"messages\[0\]\['content'\] must have at least one part"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], r"'image': \.\.\.}, got one of type 'image_url'"),
        ([{"type": "text", "text": "a"}, {"type": "text"}], r"\['content'\]\[1\] must be .*got {'type': 'text'}"),
        ([{"type": "text", "text": 3}], r"got {'type': 'text', 'text': 3}"),
        (["a"], r"got 'a'"),
    ],
)
def test_parts_that_are_no_text_are_told_with_their_place(content: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        render([{"role": "user", "content": content}], AS_TEXT)


# A final message that is left open

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMED = CHATML.replace("m.content", "(m.content | trim)")


def answer(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("content", "as_it_is", "trimmed"),
    [
        ("It is", "It is", "It is"),
        ("It is ", "It is ", "It is"),
        ("  It is\n\n", "  It is\n\n", "It is"),
        ("", "", ""),
        ([{"type": "text", "text": "It "}, {"type": "text", "text": "is "}], "It \nis ", "It \nis"),
        ("<|im_end|>\n", "<|im_end|>\n", "<|im_end|>"),
    ],
)
def test_a_final_message_ends_where_its_content_ends(content: Any, as_it_is: str, trimmed: str) -> None:
    """Check the results of transformers 5, whose `apply_chat_template` has this argument."""
    start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render([USER, answer(content)], CHATML, continue_final_message=True) == start + as_it_is
    expected = (start + trimmed).rstrip() if not trimmed else start + trimmed
    assert render([USER, answer(content)], TRIMMED, continue_final_message=True) == expected


def test_the_last_part_is_what_a_template_that_loops_leaves_open() -> None:
    assert render([parts("a", "b")], LOOPS[0] + "end", continue_final_message=True) == "<text>a<text>b"


def test_the_same_words_before_do_not_count() -> None:
    messages = [USER, answer("Hi"), USER, answer("Hi")]
    assert render(messages, CHATML, continue_final_message=True) == render(messages, CHATML).removesuffix(
        "<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content }}",
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    ],
)
def test_a_final_message_that_the_template_changes_cannot_be_continued(template: str) -> None:
    with pytest.raises(InvalidRequest, match="does not render the content of the final message unchanged"):
        render([USER, answer("<think>a</think>b")], template, continue_final_message=True)


def circular() -> dict[str, Any]:
    tool: dict[str, Any] = {}
    tool["itself"] = tool
    return tool


def deep() -> dict[str, Any]:
    tool: dict[str, Any] = {}
    for _ in range(100_000):
        tool = {"within": tool}
    return tool


def a_function() -> None: ...


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([], "at least one tool, got an empty list; leave tools out"),
        ("weather", "tools must be a list of functions or JSON schemas, got str"),
        (TOOL, "tools must be a list of functions or JSON schemas, got one dict; put it in a list"),
        (a_function, "tools must be a list .*Python object 'a_function'; give the JSON schema"),
        ([a_function], r"tools\[0\] must be .*, got the Python object 'a_function'; give the JSON schema"),
        ([TOOL, "weather"], r"tools\[1\] must be a function or the JSON schema of one, got str"),
        ([TOOL, {"call": a_function}], r"tools\[1\] cannot be written as JSON"),
        ([{"limit": float("nan")}], r"tools\[0\] cannot be written as JSON"),
        ([{"description": "a" * (1 << 22) + "b"}], "tools have more than 4194304 characters: give fewer tools"),
        ([circular()], r"tools\[0\] cannot be written as JSON"),
        ([deep()], r"tools\[0\] cannot be written as JSON"),
    ],
)
def test_malformed_tools_say_where_and_what_to_give(tools: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        render([USER], WITH_TOOLS, tools=tools)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (["enable_thinking"], "must be a mapping of variables .*got list"),
        ({1: 2}, "must map variables to values, got the key 1"),
        ({"enable-thinking": False}, "must map variables to values, got the key 'enable-thinking'"),
        ({"messages": []}, "cannot set 'messages': the messages are the prompt"),
        ({"tools": [TOOL]}, "cannot set 'tools': give them as .*tools="),
    ],
)
def test_malformed_variables_say_what_was_expected(variables: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=f"chat_template_kwargs {expected}"):
        render([USER], WITH_TOOLS, variables=variables)


def test_variables_that_no_template_reads_are_found_and_change_nothing() -> None:
    messages = [{"role": "user", "content": "hi"}]
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ thinking | default('') }}"
    variables = {"thinkng": True, "add_generation_prompt": False}
    note = "the model's chat template does not read 'thinkng'; besides the messages it reads thinking"
    assert unread_variables(variables, template, None) == {"thinkng": note}
    assert unread_variables(variables, template, "{{ thinkng }}") == {}
    assert render(messages, template, variables=variables) == "hi"
    assert render(messages, template, variables={"thinking": "!", "add_generation_prompt": False}) == "hi!"


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_tools_without_a_place_in_the_template_are_told_in_the_system_message() -> None:
    user = {"role": "user", "content": "hi"}
    system = {"role": "system", "content": "Be brief."}
    for messages, begin in (([user], "<system>You"), ([system, user], "<system>Be brief.\n\nYou")):
        text = render(messages, PLAIN, tools=[WEATHER])
        assert text.startswith(begin)
        assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in text
        assert '<tool_call>\n{"name": "NAME", "arguments": {ARGUMENTS}}\n</tool_call>' in text
        assert text.endswith("<user>hi<assistant>")
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
    text = render([system, user], strict, tools=[WEATHER])
    assert text.startswith("<user>Be brief.\n\nYou can call")
    assert text.endswith("\n\nhi<assistant>")


def test_calls_and_results_without_a_place_in_the_template_are_text() -> None:
    calls = [{"type": "function", "function": {"name": "weather", "arguments": {"city": city}}} for city in "ab"]
    results = [{"role": "tool", "content": content, "tool_call_id": "1"} for content in ("sun", "rain")]
    first: Any = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    text = render([{"role": "user", "content": "hi"}, first, *results, {"role": "user", "content": "Or?"}], PLAIN)
    calls_text = "\n".join(
        f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>' for city in "ab"
    )
    results_text = "\n".join(f"<tool_response>\n{content}\n</tool_response>" for content in ("sun", "rain"))
    assert text == f"<user>hi<assistant>I look.\n{calls_text}<user>{results_text}\nOr?<assistant>"
    with pytest.raises(InvalidRequest, match="each of tool_calls must have a function"):
        render([{"role": "user", "content": "hi"}, {**first, "tool_calls": [3]}], PLAIN)


def test_images_in_results_without_a_place_in_the_template_stay_in_order() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}" + (
        "{{ '[IMAGE]' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}"
    )
    image, call = {"type": "image"}, {"type": "function", "function": {"name": "f", "arguments": {}}}
    call_text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    first = {"role": "assistant", "content": "", "tool_calls": [call]}
    texts = [{"type": "text", "text": text} for text in ("one", "two", "three")]
    for content, expected in (
        ([image], "[IMAGE]"),
        ([*texts[:2], image, texts[2], image], "one\ntwo[IMAGE]three[IMAGE]"),
        (texts, "one\ntwo\nthree"),
        ("one", "one"),
    ):
        result = {"role": "tool", "content": content, "tool_call_id": "1"}
        text = render([{"role": "user", "content": "hi"}, first, result], template)
        assert text == f"<user>hi<assistant>{call_text}<user><tool_response>\n{expected}\n</tool_response>"
        both = render(
            [{"role": "user", "content": "hi"}, first, result, {"role": "user", "content": [image]}], template
        )
        assert both == f"{text}\n[IMAGE]"


def test_tools_are_told_with_the_templates_own_form_of_calls() -> None:
    own = PLAIN + "{% for c in messages[0].tool_calls or [] %}<｜tool▁call▁begin｜>{{ c }}{% endfor %}"
    text = render([{"role": "user", "content": "hi"}], own, tools=[WEATHER])
    assert "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>" in text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (3, "must be the name of a chat template"),
        ("models/template.jinja", "for a file, pass"),
        ("{% if messages %}", "cannot be read: Unexpected end of template"),
    ],
)
def test_a_chat_template_that_is_none_is_refused_at_the_call(template: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        rekindle.open("smollm2-135m-instruct", chat_template=template)


def test_a_model_without_a_tokenizer_takes_no_chat_template(families: Path) -> None:
    with pytest.raises(ConfigError, match="has no tokenizer, so a chat_template does nothing"):
        open_checkpoint(families / "llama-tied").with_chat_template("{{ messages }}")


def test_a_role_is_a_short_name() -> None:
    check_messages([{"role": "r" * LONGEST_ROLE, "content": "x"}])
    with pytest.raises(InvalidRequest, match=r"messages\[1\] has a role of 65 characters"):
        check_messages([{"role": "user", "content": "x"}, {"role": "r" * (LONGEST_ROLE + 1), "content": "x"}])
