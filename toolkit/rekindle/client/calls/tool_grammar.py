"""The grammar of a call whose answer is a tool call, or may be one beside a constraint."""

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

from rekindle.client.calls.options import GenerateOptions
from rekindle.client.calls.prompts import names_of
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, Prompt
from rekindle.core.request.constraint import Constraint, Kind, calls
from rekindle.core.text.constraints.parser import parse_bytes
from rekindle.core.text.tokenizer import Tokenizer


def with_tool_grammar(
    options: GenerateOptions[Any],
    prompts: Sequence[Prompt | Exception],
    tokenizer: Tokenizer | None,
    render: Callable[[Conversation], str],
    constraint_of: Callable[[GenerateOptions[Any]], Constraint | None],
) -> GenerateOptions[Any]:
    """Return the options of a call, with the grammar of tool calls if tools have a part in the output's constraint.

    A `tool_choice` that requires a call leaves no room for an answer, and other constraints are idle. Where the model
    chooses freely, they hold for an answer without calls.

    Args:
        options: the options of the call.
        prompts: its prompts.
        tokenizer: the tokenizer of the model.
        render: renders a conversation.
        constraint_of: returns the constraint of options.

    Raises:
        InvalidRequest: the tool does not exist, the prompts have no tools, or the call has a grammar too.
    """
    choice = options.get("tool_choice", "auto")
    chat = next((each for each in prompts if isinstance(each, Conversation)), None)
    others = [name for name in get_args(Kind) if options.get(name) is not None]
    answers = [name for name in others if name != "grammar"]
    is_free = choice == "none" or (choice == "auto" and not (chat is not None and chat.tools and answers))
    inputs = options.get("tool_grammars") or {}
    if choice in ("auto", "none") and inputs:
        raise InvalidRequest(f"tool_grammars are for required calls, and tool_choice is {choice!r}: require a call")
    if is_free or all(isinstance(each, Exception) for each in prompts):
        return options
    if chat is None or tokenizer is None:
        raise InvalidRequest(
            f"tool_choice={choice!r} needs a conversation, whose chat template lists the tools: give a list of "
            "{role, content} messages as the prompt"
        )
    if "grammar" in others:
        raise InvalidRequest.of("grammar", f"tool_choice={choice!r} constrains the output: leave out grammar")
    if chat.tools is None:
        raise InvalidRequest(f"tool_choice={choice!r} needs tools, and the call has none")
    unknown = set(inputs) - set(names_of(chat.tools))
    if unknown:
        raise InvalidRequest(f"tool_grammars names no tool of the call: {', '.join(sorted(unknown))}")
    from rekindle.formats.responses.tool_choice import tool_choice_grammar

    rendered = render(chat)
    answer = constraint_of(options) if choice == "auto" else None
    if answer is not None:  # errors are about its own parameter
        parse_bytes(answer.kind, answer.text, answer.parameter)
    one_call = not options.get("parallel_tool_calls", True)
    grammar = tool_choice_grammar(
        choice, chat.tools, rendered, tokenizer, one_call=one_call, inputs=inputs, answer=answer
    )
    return cast(GenerateOptions[Any], {**options, **dict.fromkeys(answers), "grammar": calls(grammar, answer)})
