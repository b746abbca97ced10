"""Reasoning efforts: each level as the nearest one of the chat template, and none as no reasoning."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.rendering.content_form import adapt_content
from rekindle.formats.rendering.template import string_constants

EFFORT: Final = "reasoning_effort"
"""The variable of chat templates for the effort."""
SWITCHES: Final[tuple[str, ...]] = ("enable_thinking", "thinking")
"""The variables of chat templates for reasoning: on or off."""
LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts in the APIs of OpenAI and Anthropic, from the least to the most."""
_OFF: Final = ("none", "no_think", "off")
"""The words of chat templates for no reasoning."""
_USUAL: Final = ("low", "medium", "high")
"""Levels of a template without a list of its own, as of gpt-oss: it writes any effort into the prompt."""
_OTHER: Final = "other-effort"


def adapt_effort(variables: Mapping[str, Any], template: ChatTemplate) -> Mapping[str, Any]:
    """Return variables of a chat template with the effort in its own words.

    A level becomes the nearest level in the template. "none" turns a switch for reasoning off, and other levels turn it
    on, unless the switch is among the variables.
    """
    effort = variables.get(EFFORT)
    if effort not in LEVELS:
        return variables
    names = template.variables
    switches = {name: effort != "none" for name in SWITCHES if name in names}
    others = {name: value for name, value in variables.items() if name != EFFORT}
    if EFFORT not in names:
        return {**switches, **others} if switches else variables
    words = effort_words(template)
    level = _nearest(effort, words)
    if level is None:
        return {**switches, **variables}
    if effort == "none" != level and switches:
        return {**switches, **others}
    return {**switches, **others, EFFORT: words[level]}


def reads_effort(variables: Mapping[str, Any], names: frozenset[str]) -> bool:
    """Return True if an effort among the variables has an effect on a template.

    Args:
        variables: the variables of a call.
        names: the names of the template's variables.
    """
    return EFFORT in names or (variables.get(EFFORT) in LEVELS and not names.isdisjoint(SWITCHES))


@lru_cache(maxsize=64)
def effort_words(template: ChatTemplate) -> Mapping[str, str]:
    """Return the word of a chat template for each level with an effect.

    A level has an effect if the template compares with its word, or renders it in another way than an unknown word.
    """
    constants = string_constants(template.source)
    words = {level: level for level in LEVELS}
    words["none"] = next((word for word in _OFF if word in constants), "none")
    compared = {level for level, word in words.items() if word in constants}
    texts = {level: _render(template, word) for level, word in words.items()}
    other = _render(template, _OTHER)
    if other is None:
        levels = {level for level, text in texts.items() if text is not None}
    elif _OTHER in other:
        levels = compared | {*_USUAL}
    else:
        levels = compared | {level for level, text in texts.items() if text not in (None, other)}
    return {level: words[level] for level in LEVELS if level in levels}


def _render(template: ChatTemplate, effort: str) -> str | None:
    """Return a short conversation with an effort; None if the template rejects it."""
    try:
        message = adapt_content({"role": "user", "content": "x"}, template)
        return template.render([message], variables={EFFORT: effort})
    except InvalidRequest:
        return None


def _nearest(effort: str, levels: Collection[str]) -> str | None:
    """Return the level nearest to an effort, of two the higher; None without any.

    "none" is no reasoning at all, so other efforts become "none" only without another level.
    """
    place = LEVELS.index(effort)
    choices = [level for level in levels if level != "none" or effort == "none"] or levels
    return min(choices, key=lambda level: (abs(LEVELS.index(level) - place), -LEVELS.index(level)), default=None)
