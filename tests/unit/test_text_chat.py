"""Chat templates run as they do in transformers, and cannot do harm."""

from typing import Any

import pytest

from rekindle.errors import InvalidRequest
from rekindle.text.chat import render

USER = {"role": "user", "content": "Hi"}


def test_without_a_template_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"no chat template.*pass the prompt as str"):
        render([USER], None)


def test_the_generation_prompt_is_optional() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    assert render([USER], template) == "Hi>"
    assert render([USER], template, add_generation_prompt=False) == "Hi"


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
    ("messages", "said"),
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
def test_malformed_messages_say_where(messages: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        render(messages, "{{ messages }}")
