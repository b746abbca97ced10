"""Grammars of arguments in a notation that is not JSON, from their JSON schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.formats.responses.calls import resolve
from rekindle.formats.responses.grammars.notations import Notation
from rekindle.formats.responses.grammars.terms import TextTerms, json_of, literal

_NOTES: Final = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$defs", "definitions", "$schema", "$id"),
    }
)
"""Keywords without a constraint."""
_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": _NUMBERS,
    "number": _NUMBERS,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
"""The keywords of each JSON type. A schema with another keyword is for JSON alone."""
_ANY: Final = ("string", "number", "boolean", "null", "array", "object")


class ValueRules:
    """Rules of a grammar for the arguments of one tool.

    Values of schemas with simple parts are in the notation. Values of other schemas are in JSON, and the parser of the
    notation accepts JSON too. So llguidance enforces all keywords, or refuses a keyword by name.

    Args:
        notation: the notation.
        name: start of the names of all rules.
        root: the schema of all arguments.
        terms: converter of texts.

    Attributes:
        rules: the rules so far.
    """

    def __init__(self, notation: Notation, name: str, root: Mapping[str, Any], terms: TextTerms) -> None:
        self._notation, self._name, self._root, self._terms = notation, name, root, terms
        self._names: dict[str, str] = {}  # rules by the text of their schema, before the rules are complete
        self.rules: list[str] = []

    def arguments(self) -> str:
        """Return the term of all arguments, by their names."""
        properties, required = self._root.get("properties") or {}, self._root.get("required") or ()
        texts = [(f"{name}{self._notation.argument_end}", name) for name in properties]
        return self._fields(self._name, texts, properties, required)

    def _fields(
        self, name: str, texts: Sequence[tuple[str, str]], properties: Mapping[str, Any], required: Sequence[str]
    ) -> str:
        """Return the term of values after texts, in order. A value without a requirement may be missing.

        Args:
            name: the start of the names of the rules.
            texts: the texts before the values, and the keys of the values.
            properties: the schemas of the values by key.
            required: the keys of the required values.
        """
        if self._notation.sorts:
            texts = sorted(texts, key=lambda each: (each[1].lower(), each[1]))
        separator = literal(self._notation.separator)
        for place, (text, key) in enumerate(texts):
            value = f"{self._terms.of(text)} {self._value(properties[key])} {name}_after_{place + 1}"
            skips = key not in required
            first = f" | {name}_first_{place + 1}" if skips else ""
            self.rules.append(f"{name}_first_{place}: {value}{first}")
            self.rules.append(
                f"{name}_after_{place}: {separator} {value}{f' | {name}_after_{place + 1}' if skips else ''}"
            )
        self.rules += [f"{name}_first_{len(texts)}: {literal('')}", f"{name}_after_{len(texts)}: {literal('')}"]
        return f"{name}_first_0"

    def _value(self, schema: Any) -> str:
        """Return the rule of a schema."""
        identity = json.dumps(schema, sort_keys=True)
        if identity not in self._names:
            name = self._names[identity] = f"{self._name}_v{len(self._names)}"
            self.rules.append(f"{name}: {self._terms_of(name, schema)}")
        return self._names[identity]

    def _terms_of(self, name: str, schema: Any) -> str:
        """Return the alternatives of a schema, in JSON if the notation has no place for a keyword."""
        schema = schema if isinstance(schema, Mapping) else {}
        keywords = set(schema) - _NOTES
        if keywords == {"$ref"}:
            target = resolve(schema["$ref"], self._root)
            return json_of(schema, self._root) if target is None else self._value(target)
        if keywords == {"anyOf"} and schema["anyOf"]:
            return " | ".join(map(self._value, schema["anyOf"]))
        if keywords and keywords <= {"const", "enum", "type"} and (values := _texts_in(schema)):
            return " | ".join(map(self._literal, values))
        kinds = schema.get("type", _ANY)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        keywords_of_kinds = {"type"}.union(*(_OF_KIND.get(kind, ()) for kind in kinds))
        if not keywords <= keywords_of_kinds or not set(kinds) <= set(_OF_KIND):
            return json_of(schema, self._root)
        return " | ".join(self._of_kind(f"{name}_{kind}", kind, schema) for kind in kinds)

    def _literal(self, text: str) -> str:
        """Return the term of one text."""
        mark = self._notation.mark
        if mark is not None:
            return self._terms.of(f"{mark}{text}{mark}") if mark not in text else literal(literal(text))
        return f"({literal(literal(text))} | {literal(repr(text))})" if _is_plain(text) else literal(literal(text))

    def _of_kind(self, name: str, kind: str, schema: Mapping[str, Any]) -> str:
        """Return the term of a JSON type."""
        own = {keyword: schema[keyword] for keyword in schema if keyword in _OF_KIND[kind]}
        term: str | None = None
        if kind in self._notation.constants:
            term = self._notation.constants[kind]
        elif kind == "string":
            term, more = self._notation.text(name, own, self._terms)
            self.rules += more
        elif kind == "array":
            term = self._array(own)
        elif kind == "object":
            term = self._object(name, own)
        return json_of({"type": kind, **own}, self._root) if term is None else term

    def _array(self, schema: Mapping[str, Any]) -> str:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if high == 0:
            return '"[" "]"'
        item, separator = self._value(schema.get("items", {})), literal(self._notation.separator)
        more = f"({separator} {item}){{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
        return f'"[" {item} {more} "]"' if low else f'"[" ({item} {more})? "]"'

    def _object(self, name: str, schema: Mapping[str, Any]) -> str | None:
        """Return the term of an object; None for named keys beside free keys, and for required free keys."""
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        required = schema.get("required", ())
        if not set(required) <= set(properties) or (properties and others not in (None, False)):
            return None
        if properties or others is False:
            texts = [(self._notation.key(key), key) for key in properties]
            return f'"{{" {self._fields(name, texts, properties, required)} "}}"'
        entry = f"{self._notation.any_key()} {self._value(others if isinstance(others, Mapping) else {})}"
        return f'"{{" ({entry} ({literal(self._notation.separator)} {entry})*)? "}}"'


def _texts_in(schema: Mapping[str, Any]) -> Sequence[str]:
    """Return the texts of an enumeration; empty for an enumeration with other values, or for another type."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    is_text = schema.get("type", "string") == "string" and all(isinstance(value, str) for value in values)
    return values if is_text and not {"const", "enum"} <= set(schema) else ()


def _is_plain(text: str) -> bool:
    """Return True if Python and JSON escape nothing in a text."""
    return repr(text)[1:-1] == text == json.dumps(text, ensure_ascii=False)[1:-1]
