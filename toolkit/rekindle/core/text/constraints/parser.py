"""Matchers of llguidance from JSON schemas, regular expressions, choices and Lark grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from rekindle.core.concurrency.threads import on_deep_stack
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.constraint import Kind, regex_of
from rekindle.core.text.constraints.bounds import check_grammar, check_schema, parts_of, schemas_in, too_deep
from rekindle.core.text.constraints.schemas import without_notes

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON in the style of Python's `json.dumps`: with free whitespace, a small model can emit whitespace forever."""
STRICT: Final = {"lenient": False, "coerce_one_of": False}
"""llguidance must not ignore any part of a schema, even if the schema itself requests it."""


NO_TEXT, DISALLOWED = "NoExtensionBias", "doesn't satisfy the grammar"
"""llguidance's name for a grammar that matches no text, and its words about a token that a grammar does not allow."""
_GRAMMAR_OF_REGEX: Final = re.compile(r"\n *1 \| start: /")
"""The end of an error about a regex: a line of the grammar that llguidance made of it."""
Source = Callable[[], str]
"""Function for a grammar in llguidance's own form; may raise ValueError."""


def parse(kind: Kind, text: str, tokens: LLTokenizer, name: str) -> LLMatcher:
    """Return the matcher of a constraint at the first token, with the first mask computed.

    The bounds are checked before the parser runs, on a thread with a deep stack. Errors of the parser are translated.

    Args:
        kind: the kind of the constraint.
        text: the constraint, as in `Constraint.text`.
        tokens: the tokens of the output.
        name: the parameter with the constraint, for errors.

    Raises:
        InvalidRequest: the constraint is too large, cannot be parsed, or matches no text.
    """
    source = _source(kind, text, name)
    matcher, error = on_deep_stack(partial(_start, source, tokens))
    if NO_TEXT in error or (matcher is not None and not error and matcher.is_stopped()):
        raise InvalidRequest.of(name, f"{name} matches no text: {text!r:.80}")
    if matcher is None or error:
        why = reason(error)
        if kind == "regex":
            why = _GRAMMAR_OF_REGEX.split(why)[0]
        raise InvalidRequest.of(name, f"{name} cannot be served: {why}")
    return matcher


def parse_bytes(kind: Kind, text: str, name: str) -> LLMatcher:
    """Return the matcher of a constraint over the bytes of a text; see `parse`."""
    return parse(kind, text, _bytes(), name)


def reason(message: str) -> str:
    """Return an error message of llguidance without its internal state dump."""
    return message.split("\n<state>")[0].split("\n<backtrace>")[0].strip()


@cache
def _bytes() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _start(source: Source, tokens: LLTokenizer) -> tuple[LLMatcher | None, str]:
    """Return a new matcher after the first mask, or None; and the error, empty for none."""
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(tokens, source(), log_level=0)
    except ValueError as error:  # no grammar at all, such as a schema with a number that llguidance cannot hold
        return None, str(error)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher, matcher.get_error() if matcher.is_error() else ""


def _source(kind: Kind, text: str, name: str) -> Source:
    """Return the function for the source of a constraint within the bounds."""
    from llguidance import LLMatcher

    match kind:
        case "json_schema":
            schema = _loaded(text, name)
            check_schema(name, schema)
            _check_counts(name, schema)
            options = cast(Any, JSON_STYLE | STRICT)
            source = json.dumps(without_notes(schema), ensure_ascii=False)
            return partial(LLMatcher.grammar_from_json_schema, source, overrides=options)
        case "regex":
            return partial(LLMatcher.grammar_from_regex, text)
        case "choice":
            return partial(LLMatcher.grammar_from_regex, regex_of(json.loads(text)))
        case "grammar":
            check_grammar(name, text)
            return partial(LLMatcher.grammar_from_lark, _without_notes(name, text))


def _loaded(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise too_deep(name) from error


def _without_notes(name: str, grammar: str) -> str:
    """Return a Lark grammar with `without_notes` of each JSON schema in it."""
    pieces, last = list[str](), 0
    for schema, start, end in schemas_in(name, grammar):
        plain = without_notes(schema)
        if plain != schema:
            pieces += [grammar[last:start], json.dumps(plain, ensure_ascii=False)]
            last = end
    return "".join([*pieces, grammar[last:]])


def _check_counts(name: str, schema: Any) -> None:
    """Check the `minProperties` of all objects in a schema. At most one unnamed key may be required.

    Unnamed keys need not be distinct, so a repeated key would satisfy a higher number.

    Raises:
        InvalidRequest: an object requires several unnamed keys.
    """
    for part, _ in parts_of(schema):
        if not isinstance(part, Mapping):
            continue
        min_properties, required = part.get("minProperties"), part.get("required")
        has_free_keys = "patternProperties" in part or part.get("additionalProperties", True) is not False
        if (
            isinstance(min_properties, int)
            and has_free_keys
            and min_properties - len(required if isinstance(required, list) else ()) > 1
        ):
            raise InvalidRequest.of(
                name,
                f"{name} cannot enforce minProperties={min_properties}, because it does not name the keys, and a "
                "repeated key would count twice: name the keys in required, or remove minProperties",
            )
