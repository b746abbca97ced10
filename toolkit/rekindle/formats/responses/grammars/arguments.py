"""Rules for the arguments of a required call, by the schema of the tool as far as a grammar can enforce it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.constraints.bounds import check_schema
from rekindle.core.text.constraints.parser import parse_bytes
from rekindle.core.text.constraints.recent import Recent
from rekindle.core.text.constraints.schemas import relaxed, without_notes
from rekindle.formats.responses.calls import allows
from rekindle.formats.responses.grammars.call_forms import TYPED, CallForm
from rekindle.formats.responses.grammars.terms import TextTerms, json_of, literal, text_of
from rekindle.formats.responses.grammars.values import ValueRules


def argument_rules(name: str, tool: str, schema: Mapping[str, Any], form: CallForm, terms: TextTerms) -> Iterable[str]:
    """Return the rules for the arguments of a tool.

    The schema of a tool is advice: keywords unknown to a grammar are left out. The last resorts are any values under
    the same names, and any object.

    Args:
        name: the name of the first rule, and the start of all names.
        tool: the name of the tool.
        schema: the schema of the arguments.
        form: the text around calls.
        terms: converter of texts.

    Raises:
        InvalidRequest: no grammar of the arguments can be parsed.
    """
    for candidate in _candidates(schema):
        try:
            parts = _arguments(name, candidate, form, TextTerms({}))
            if is_served("\n".join([f"start: {name}", *parts])):
                return list(_arguments(name, candidate, form, terms))
        except Exception:  # a schema may be malformed in any way, such as a list in place of an object
            continue
    raise InvalidRequest.of("tools", f"a call of {tool!r:.80} cannot be required: its parameters have no grammar")


def schema_of_arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a tool for arguments in JSON, as far as a grammar can enforce it; see `argument_rules`."""
    for candidate in _candidates(schema):
        try:
            if is_served(f"start: {json_of(candidate)}"):
                return candidate
        except Exception:  # as in `argument_rules`
            continue
    return {"type": "object"}


def _candidates(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schema of a tool, and schemas with fewer and fewer constraints."""
    try:
        check_schema("tools", schema)
        yield without_notes(schema)
        yield relaxed(schema, _is_pattern)
    except InvalidRequest:  # too large
        pass
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping) and properties:
        texts = [each for each in required if isinstance(each, str)] if isinstance(required, list) else []
        names = [each for each in texts if each in properties]
        is_open = schema.get("additionalProperties") is not False
        yield {"properties": {key: {} for key in properties}, "required": names, "additionalProperties": is_open}
    yield {"type": "object"}


_SERVED: Final[Recent[str, bool]] = Recent(1 << 22)
"""Verdicts about grammars, within so many characters of grammars."""


def is_served(grammar: str) -> bool:
    """Return True if a grammar can be parsed."""
    is_served = _SERVED.get(grammar)
    if is_served is None:
        try:
            parse_bytes("grammar", grammar, "tools")
            is_served = True
        except InvalidRequest:
            is_served = False
        _SERVED.put(grammar, is_served, len(grammar))
    return is_served


def _is_pattern(pattern: str) -> bool:
    """Return True if a `pattern` can be parsed."""
    return is_served(f"start: {json_of({'type': 'string', 'pattern': pattern})}")


def _arguments(name: str, schema: Mapping[str, Any], form: CallForm, terms: TextTerms) -> Iterable[str]:
    """Return the rules for the arguments of a tool."""
    if form.tag is not None:
        return _tags(name, schema, form.tag, terms)
    if form.notation is None:
        return [f"{name}: {json_of(schema)}"]
    values = ValueRules(form.notation, name, schema, terms)
    return [f"{name}: {values.arguments()}", *values.rules]


def _tags(name: str, schema: Mapping[str, Any], tag: tuple[str, str, str], terms: TextTerms) -> Iterator[str]:
    """Yield the rules for arguments as tags, in the order of the schema.

    Strings are written without quotes. They cannot contain argument tags, which the parser would match.
    """
    begin, key_end, value_end = tag
    end, tags = terms.of(value_end), []
    for place, (key, kind) in enumerate(schema.get("properties", {}).items()):
        value = f"{name}_{place}"
        texts = [each for each in kind.get("enum", ()) if isinstance(each, str)] if isinstance(kind, Mapping) else []
        is_text = bool(texts) or allows("string", kind, schema)
        opening = f"{begin}{key}{key_end.replace(TYPED, str(is_text).lower())}"
        rule = f"{terms.of(opening)} {value}"
        tags.append(rule if key in schema.get("required", ()) else f"({rule})?")
        if texts:
            yield f"{value}: ({' | '.join(literal(text) for text in texts)}) {end}"
        elif is_text:
            own = kind if isinstance(kind, Mapping) and kind.get("type") == "string" else {}
            text, may_be_empty = text_of(own, begin, value_end.strip())
            optional = "?" if may_be_empty else ""
            if end.startswith("<"):  # a terminal cannot have a token
                yield f"{value.upper()}: {text}"
                yield f"{value}: {value.upper()}{optional} {end}"
            else:
                yield f"{value.upper()}: ({text}){optional} {end}"
                yield f"{value}: {value.upper()}"
        else:
            yield f"{value}: {json_of(kind, schema)} {end}"
    yield f"{name}: {' '.join(tags) or literal('')}"
