"""Grammar for a choice of tools (`tool_choice`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.constraint import Constraint
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.families import ANCHORS, reasoning_delimiters
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.grammars.call_forms import form_of
from rekindle.formats.responses.grammars.call_grammar import NO_INPUTS, call_grammar
from rekindle.formats.responses.marks import marks_of


def tool_choice_grammar(
    choice: str,
    tools: Sequence[Mapping[str, Any]],
    rendered: str,
    tokenizer: Tokenizer,
    *,
    one_call: bool = False,
    inputs: Mapping[str, str] = NO_INPUTS,
    answer: Constraint | None = None,
) -> str:
    """Return the grammar of answers that obey a tool choice.

    Args:
        choice: "required", or the name of a tool; "auto" for calls or an answer of a constraint.
        tools: JSON schemas of the tools.
        rendered: the rendered prompt. It may have begun or closed the reasoning.
        one_call: whether the answer has one call at most.
        inputs: Lark grammars of tools with one text as argument, by name.
        answer: the constraint on an answer without calls, for "auto".

    Raises:
        InvalidRequest: the tool does not exist, or the model's format of calls is unknown.
    """
    template = tokenizer.template_with_tools or ""
    form = form_of(format_of(tokenizer).calls)
    if form is None and answer is not None:
        name = answer.parameter
        raise InvalidRequest.of(
            name,
            f"{name} beside tools needs a known form of calls, but this model's chat template has another; leave out "
            f"tools or {name}",
        )
    if form is None:
        raise InvalidRequest(
            f"tool_choice={choice!r} needs a known form of calls, but this model's chat template has another; omit "
            "tool_choice"
        )
    added, marks = tokenizer.backend.get_added_tokens_decoder(), marks_of(tokenizer).texts
    special = {entry.content: token for token, entry in added.items() if entry.special or entry.content in marks}
    reasoning, in_reasoning = reasoning_delimiters(template), False
    if reasoning is not None:
        ends = (rendered.rfind(anchor) + len(anchor) for anchor in ANCHORS if anchor in rendered)
        begin = rendered[max(ends, default=len(rendered)) :]
        in_reasoning = begin.rfind(reasoning[0]) > begin.rfind(reasoning[1])
        if reasoning[1] in begin and not in_reasoning:
            reasoning = None
    return call_grammar(
        form,
        tools,
        "required" if choice == "auto" else choice,
        special=special,
        reasoning=reasoning,
        in_reasoning=in_reasoning,
        one_call=one_call,
        inputs=inputs,
        answer=answer,
    )
