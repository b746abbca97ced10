"""Facts about the chat template of a session, for requests in other APIs than OpenAI's."""

from functools import lru_cache

from rekindle.core.errors import RekindleError
from rekindle.core.text.chat import render
from rekindle.core.text.template import template_variables
from rekindle.server.models.served import ServedModel
from rekindle.server.reading.messages import Template

_EARLY, _LATE = "EARLY", "LATE"


def template_of(model: ServedModel) -> Template:
    """Return the facts about the chat template of a model."""
    tokenizer = model.session.tokenizer
    source = None if tokenizer is None else tokenizer.chat_template
    if tokenizer is None or source is None:
        return Template(model.form, frozenset(), False)
    variables = template_variables(source) | template_variables(tokenizer.template_with_tools or source)
    late_system = _renders_late_system(source, tokenizer.bos_token, tokenizer.eos_token)
    return Template(model.form, variables, late_system)


@lru_cache(maxsize=64)
def _renders_late_system(template: str, bos_token: str | None, eos_token: str | None) -> bool:
    """Return True if a template renders a system message where it stands among the others."""
    turns = [("system", "x"), ("user", "x"), ("assistant", _EARLY), ("user", "x"), ("system", _LATE)]
    try:
        text = render([{"role": role, "content": text} for role, text in turns], template, bos_token, eos_token)
    except RekindleError:
        return False
    return _LATE in text and text.find(_EARLY) < text.find(_LATE)
