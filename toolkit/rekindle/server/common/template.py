"""Facts about the chat template of a model, for requests in other APIs than OpenAI's."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rekindle.formats.rendering.efforts import EFFORT, SWITCHES
from rekindle.formats.response import MessageForm


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    """The chat template of a model, as far as requests depend on it.

    Attributes:
        form: the message format.
        variables: the names of its variables.
    """

    form: MessageForm
    variables: Collection[str]


def thinking_variables(thinks: bool, variables: Collection[str]) -> dict[str, Any]:
    """Return the variables of a chat template that turn its thinking on or off.

    Args:
        thinks: whether the model is to think.
        variables: the names of the template's variables.
    """
    switches = {name: thinks for name in SWITCHES if name in variables}
    return switches if thinks or EFFORT not in variables else {**switches, EFFORT: "none"}
