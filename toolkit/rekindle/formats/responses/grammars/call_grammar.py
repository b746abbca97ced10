"""Grammar of answers with required tool calls, in llguidance's Lark syntax."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.constraint import Constraint, regex_of
from rekindle.core.text.constraints.schemas import moved, without_notes
from rekindle.formats.responses.grammars.arguments import argument_rules, is_served, schema_of_arguments
from rekindle.formats.responses.grammars.call_forms import CallForm
from rekindle.formats.responses.grammars.inputs import input_schema
from rekindle.formats.responses.grammars.notations import Notation
from rekindle.formats.responses.grammars.terms import TextTerms, json_of, literal, regex_literal, without


def term_of(answer: Constraint) -> str:
    """Return the term of a constraint other than a grammar."""
    match answer.kind:
        case "json_schema":
            return json_of(without_notes(json.loads(answer.text)))
        case "choice":
            return regex_literal(regex_of(json.loads(answer.text)))
        case _:
            return regex_literal(answer.text)


def call_or_value(tools: Mapping[str, Mapping[str, Any]], answer: str) -> str:
    """Return the term of one call in JSON without delimiters, or of a value of a schema.

    As alternatives of a grammar, the beginnings of the two could not be told apart.

    Args:
        tools: the schemas of the arguments by the names of the tools.
        answer: the schema of the value, as JSON.
    """
    parts = [moved(without_notes(json.loads(answer)), "#/anyOf/0")]
    for place, (name, schema) in enumerate(tools.items(), 1):
        arguments = moved(schema_of_arguments(schema), f"#/anyOf/{place}/properties/parameters")
        call = {"type": "object", "properties": {"name": {"const": name}, "parameters": arguments}}
        parts.append({**call, "required": ["name", "parameters"], "additionalProperties": False})
    return json_of({"anyOf": parts})


NO_INPUTS: Final[Mapping[str, str]] = {}


def call_grammar(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    special: Mapping[str, int],
    reasoning: tuple[str, str] | None = None,
    in_reasoning: bool = False,
    one_call: bool = False,
    inputs: Mapping[str, str] = NO_INPUTS,
    answer: Constraint | None = None,
) -> str:
    """Return the grammar of answers with tool calls, after reasoning if the model reasons.

    Args:
        form: the text around calls.
        tools: JSON schemas of the tools.
        choice: "required" for one or more calls of any tool, or the name of a tool to call exactly once.
        special: ids of the possible delimiter tokens by text. A grammar must name special tokens by id, and the parser
            expects delimiters as tokens.
        reasoning: the delimiters of reasoning, or None for a model without reasoning.
        in_reasoning: whether the prompt has already begun the reasoning.
        one_call: whether "required" means exactly one call.
        inputs: Lark grammars of tools with one text as argument, by name.
        answer: the constraint on an answer without calls, or None if an answer must have calls.

    Raises:
        InvalidRequest: no tool has this name, a tool has no name, or the form has no place for a name.
    """
    functions = dict(map(_function, tools))
    if choice != "required" and choice not in functions:
        raise InvalidRequest(
            f'tool_choice must be "auto", "required", "none" or the name of a tool '
            f"({', '.join(functions)}); got {choice!r:.80}"
        )
    candidates = functions if choice == "required" else {choice: functions[choice]}
    if form.notation is not None:
        _check_names(form.notation, candidates)
    terms, is_single = TextTerms(special), one_call or choice != "required"
    calls = f"{terms.of(form.begin)} {_calls(form, terms, is_single=is_single)} {terms.of(form.end)}"
    prefix = "thought " if reasoning else ""
    rules = [*_reasoning_rules(*reasoning, in_reasoning, terms)] if reasoning else []
    if answer is None:
        rules.insert(0, f"start: {prefix}{calls}")
    elif form.is_json and answer.kind == "json_schema":
        return "\n".join([f"start: {prefix}answer", *rules, f"answer: {call_or_value(candidates, answer.text)}"]) + "\n"
    else:
        rules = [f"start: {prefix}(calls | answer)", f"calls: {calls}", f"answer: {term_of(answer)}", *rules]
    rules.append(f"call: {' | '.join(f'call_{place}' for place in range(len(candidates)))}")
    for place, (name, schema) in enumerate(candidates.items()):
        arguments = f"arguments_{place}"
        parts = (terms.of(form.before + name + form.between), arguments, terms.of(form.after))
        rules.append(f"call_{place}: {' '.join(filter(None, parts))}")
        own = _input(inputs[name], name, schema) if name in inputs else schema
        rules += argument_rules(arguments, name, own, form, terms)
    return "\n".join(rules) + "\n"


def _calls(form: CallForm, terms: TextTerms, *, is_single: bool) -> str:
    if is_single or form.separator is None:
        return "call"
    return f"call ({' '.join(filter(None, (terms.of(form.separator), 'call')))})*"


def _reasoning_rules(begin: str, end: str, in_reasoning: bool, terms: TextTerms) -> Iterator[str]:
    """Yield the rules for reasoning. It is optional, unless the prompt has already begun it."""
    closing = max((mark for mark in terms.special if mark and end.startswith(mark)), key=len, default=None)
    if closing is None:
        yield f"thoughts[suffix={literal(end)}]: /(.|\\n)*/"
    else:
        yield f"THOUGHTS: {without(closing)}"
        yield f"thoughts: THOUGHTS? {terms.of(end)}"
    yield "thought: thoughts /\\s*/" if in_reasoning else f"thought: ({terms.of(begin)} thoughts /\\s*/)?"


def _input(grammar: str, tool: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema for the arguments of a tool with a grammar; see `input_schema`."""
    try:
        own = input_schema(grammar, schema)
    except InvalidRequest as error:
        raise InvalidRequest.of("tools", f"a call of {tool!r:.80} cannot be required: {error}") from error
    if not is_served(f"start: {json_of(own)}"):
        raise InvalidRequest.of("tools", f"a call of {tool!r:.80} cannot be required: its grammar is too large")
    return own


def _check_names(notation: Notation, tools: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the names of tools and arguments against a notation."""
    for name, schema in tools.items():
        arguments = [each for each in schema.get("properties") or {} if not notation.can_name(each, is_argument=True)]
        if arguments or not notation.can_name(name, is_argument=False):
            raise InvalidRequest(
                f"tool_choice cannot require {name!r:.80}: this model calls tools in a notation without the name "
                f"{(arguments or [name])[0]!r:.80}; rename it, or omit tool_choice"
            )


def _function(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the parameter schema of a tool."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"tool_choice needs tools with names, got {tool!r:.80}")
    parameters = function.get("parameters") or {"type": "object"}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(f"the parameters of {name} must be a JSON schema, got {parameters!r:.80}")
    return name, {"additionalProperties": False, **parameters}
