"""Each reasoning effort reaches the prompt as the nearest one that the chat template knows."""

from typing import Any

import pytest

from rekindle.formats.rendering.chat import render, unread_variables
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.rendering.efforts import LEVELS, adapt_effort, effort_words

SWITCH = "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ messages[0].content }}"
OTHER_SWITCH = (
    "{% if thinking is not defined %}{% set thinking = false %}{% endif %}{{ thinking }}{{ messages[0].content }}"
)
GPT_OSS = (
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "Reasoning: {{ reasoning_effort }}\n{{ messages[0].content }}"
)
QWEN = (
    "{% set effort = reasoning_effort | default('xhigh') %}{% if effort not in ['xhigh', 'medium', 'low'] %}"
    "{{ raise_exception('effort') }}{% endif %}{% if enable_thinking is defined and not enable_thinking %}quiet "
    "{% else %}{{ effort }} {% endif %}{{ messages[0].content }}"
)
MISTRAL = (
    "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'none' %}"
    "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('none or high') }}{% endif %}"
    "[{{ reasoning_effort }}]{{ messages[0].content }}"
)
HUNYUAN = (
    "{% if reasoning_effort == 'high' %}deep{% elif reasoning_effort == 'no_think' %}off{% else %}fast{% endif %}"
    "{{ messages[0].content }}"
)
RENDERS_LEVELS = (
    "{% set notes = {'low': 'L', 'max': 'M'} %}{{ notes.get(reasoning_effort, '-') }}{{ messages[0].content }}"
)
USER = {"role": "user", "content": "x"}


def of(template: str, effort: str, **others: Any) -> str:
    return render([USER], template, variables={"reasoning_effort": effort, **others})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (GPT_OSS, "low low low medium high high high"),
        (QWEN, "off low low medium xhigh xhigh xhigh"),
        (MISTRAL, "none high high high high high high"),
        (HUNYUAN, "no_think high high high high high high"),
        (RENDERS_LEVELS, "low low low low max max max"),
    ],
    ids=["gpt-oss", "qwen", "mistral", "hunyuan", "table"],
)
def test_each_level_becomes_the_nearest_one_of_the_template(template: str, expected: str) -> None:
    chat_template = ChatTemplate(template)
    variables = [dict(adapt_effort({"reasoning_effort": level}, chat_template)) for level in LEVELS]
    words = [
        each.get("reasoning_effort", "off" if each.get("enable_thinking") is False else None) for each in variables
    ]
    assert words == expected.split()
    assert len({render([USER], template, variables=each) for each in variables}) == len(set(words))  # and each renders


def test_none_turns_reasoning_off_and_another_level_turns_it_on() -> None:
    assert of(SWITCH, "none") == "Falsex"
    assert of(SWITCH, "low") == "Truex"
    assert of(OTHER_SWITCH, "high") == "Truex"
    assert of(OTHER_SWITCH, "none") == "Falsex"
    assert of(QWEN, "none") == "quiet x"


def test_a_switch_of_the_caller_has_the_last_word() -> None:
    assert of(SWITCH, "none", enable_thinking=True) == "Truex"
    assert of(QWEN, "high", enable_thinking=False) == "quiet x"


def test_other_values_are_the_templates() -> None:
    assert of(GPT_OSS, "banana") == "Reasoning: banana\nx"
    number = render([USER], GPT_OSS, variables={"reasoning_effort": 3})
    assert number == "Reasoning: 3\nx"


def test_an_effort_is_read_by_a_template_with_a_switch() -> None:
    assert unread_variables({"reasoning_effort": "none"}, SWITCH) == {}
    assert unread_variables({"reasoning_effort": "banana"}, SWITCH).keys() == {"reasoning_effort"}
    assert unread_variables({"reasoning_effort": "low"}, "{{ messages[0].content }}").keys() == {"reasoning_effort"}


def test_a_template_that_refuses_all_levels_says_so_itself() -> None:
    refuses = (
        "{% if reasoning_effort is defined %}{{ raise_exception('no effort') }}{% endif %}{{ messages[0].content }}"
    )
    assert effort_words(ChatTemplate(refuses)) == {}
    with pytest.raises(Exception, match="no effort"):
        of(refuses, "low")
