"""What a choice of tools holds an answer to."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.responses.call_grammar import call_grammar, form_of
from rekindle.core.text.responses.families import ANCHORS, calls_for, marks_of_thought
from rekindle.core.text.responses.marks import marks_of
from rekindle.core.text.tokenizer import Tokenizer


def grammar_of_choice(choice: str, tools: Sequence[Mapping[str, Any]], rendered: str, tokenizer: Tokenizer) -> str:
    """Return the grammar of answers that call tools as is chosen.

    Args:
        choice: "required", or the name of a tool.
        tools: their JSON schemas.
        rendered: the prompt, in which the reasoning may have begun, or have been passed over.

    Raises:
        InvalidRequest: there is no such tool, or it is not known how the model writes calls.
    """
    template = tokenizer.answer_template or ""
    form = form_of(calls_for(template))
    if form is None:
        raise InvalidRequest(
            f"tool_choice={choice!r} needs a model whose chat template shows how it writes calls, and this one shows "
            "none; leave tool_choice out"
        )
    added, marks = tokenizer.backend.get_added_tokens_decoder(), marks_of(tokenizer).texts
    special = {entry.content: token for token, entry in added.items() if entry.special or entry.content in marks}
    thinks, begun = marks_of_thought(template), False
    if thinks is not None:
        ends = (rendered.rfind(anchor) + len(anchor) for anchor in ANCHORS if anchor in rendered)
        answer = rendered[max(ends, default=len(rendered)) :]
        begun = answer.rfind(thinks[0]) > answer.rfind(thinks[1])
        if thinks[1] in answer and not begun:
            thinks = None
    return call_grammar(form, tools, choice, special=special, thinks=thinks, thinking=begun)
