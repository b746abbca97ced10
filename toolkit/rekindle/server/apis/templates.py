"""Facts about the chat template of a session, for requests in other APIs than OpenAI's."""

from rekindle.formats.rendering.template import template_variables
from rekindle.server.models.served import ServedModel
from rekindle.server.reading.messages import Template


def template_of(model: ServedModel) -> Template:
    """Return the facts about the chat template of a model."""
    tokenizer = model.session.tokenizer
    source = None if tokenizer is None else tokenizer.chat_template
    if tokenizer is None or source is None:
        return Template(model.form, frozenset())
    variables = template_variables(source) | template_variables(tokenizer.template_with_tools or source)
    return Template(model.form, variables)
