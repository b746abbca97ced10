"""Bounds on schemas and grammars, checked before llguidance parses them.

Its parsers recurse without a bound along references, and a native stack that overflows ends the process. On a stack of
`STACK_BYTES`, about 80,000 rules overflow, or 30,000 definitions of a schema. Brackets and groups have bounds there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final
from urllib.parse import unquote

from rekindle.core.errors import InvalidRequest

DEEPEST_SCHEMA: Final = 120
"""Most objects and lists around a value of a schema; llguidance has room for four more."""
MOST_LEVELS: Final = 8_000
"""Most levels of a schema and of all its parts that references name, together."""
MOST_PARTS: Final = 20_000
"""Most objects and lists in a schema."""
MOST_PROPERTIES: Final = 5_000
"""Most named properties in a schema, as in OpenAI's API. Their time grows with the square of their number."""
MOST_OPTIONAL: Final = 500
"""Most optional properties in sequence, without a required one between: a row of llguidance has room for no more."""
MOST_RULES: Final = 16_000
"""Most rules and terminals of a grammar."""
_RULE: Final = re.compile(r'[^"\s][ \t]*:')
"""The end of a rule's name. Before the colons of JSON, there is a quote."""
_SCHEMA: Final = re.compile(r"%json\s*")
_DECODER: Final = json.JSONDecoder()


def check_schema(name: str, schema: Any) -> None:
    """Check the depth and the size of a JSON schema.

    Args:
        name: the parameter with the schema, for errors.
        schema: the schema, as parsed JSON.

    Raises:
        InvalidRequest: the schema is too deep or too large.
    """
    parts = properties = optional = levels = 0
    references = dict[str, None]()
    for part, depth in parts_of(schema):
        if depth > DEEPEST_SCHEMA:
            raise _beyond(name, f"is nested {depth} levels deep", DEEPEST_SCHEMA, "name inner schemas in $defs")
        parts, levels = parts + 1, max(levels, depth)
        if isinstance(part, Mapping):
            count, sequence = _properties_in(part)
            properties, optional = properties + count, max(optional, sequence)
            if isinstance(reference := part.get("$ref"), str):
                references[reference] = None
    if parts > MOST_PARTS:
        raise _beyond(name, f"has {parts} objects and lists", MOST_PARTS, "use a smaller schema")
    if properties > MOST_PROPERTIES:
        raise _beyond(name, f"has {properties} properties", MOST_PROPERTIES, "use a smaller schema")
    if optional > MOST_OPTIONAL:
        raise _beyond(name, f"has {optional} optional properties in sequence", MOST_OPTIONAL, "require some between")
    heights: dict[int, int] = {}  # by identity, because many references may name one part
    for reference in references:
        target = _target(schema, reference)
        if id(target) not in heights:
            heights[id(target)] = _height(target)
        levels += 1 + heights[id(target)]
    if levels > MOST_LEVELS:
        raise _beyond(name, f"has {levels} levels with its references", MOST_LEVELS, "use fewer definitions")


def check_grammar(name: str, grammar: str) -> None:
    """Check the size of a Lark grammar, and the JSON schemas in it.

    Raises:
        InvalidRequest: the grammar is too large, or one of its schemas is too deep or too large.
    """
    rules = sum(1 for _ in _RULE.finditer(grammar))
    if rules > MOST_RULES:
        raise _beyond(name, f"has {rules} rules", MOST_RULES, "use a smaller grammar")
    for schema, _, _ in schemas_in(name, grammar):
        check_schema(name, schema)


def schemas_in(name: str, grammar: str) -> Iterator[tuple[Any, int, int]]:
    """Yield the JSON schemas in a Lark grammar, each with its start and its end.

    Raises:
        InvalidRequest: a schema is too deep.
    """
    for match in _SCHEMA.finditer(grammar):
        try:
            schema, end = _DECODER.raw_decode(grammar, match.end())
        except RecursionError as error:
            raise too_deep(name) from error
        except ValueError:
            continue  # a text with this name, or an error for the parser
        yield schema, match.end(), end


def too_deep(name: str) -> InvalidRequest:
    """Return the error for a schema that Python cannot parse or write."""
    return _beyond(name, "is nested too deep", DEEPEST_SCHEMA, "name inner schemas in $defs")


def _beyond(name: str, fact: str, most: int, way: str) -> InvalidRequest:
    return InvalidRequest.of(name, f"{name} {fact}; at most {most:,} can be served: {way}")


def parts_of(schema: Any) -> Iterator[tuple[Any, int]]:
    """Yield each object and each list in a value, with the number of objects and lists around it and itself."""
    rest = [(schema, 1)]
    while rest:
        part, depth = rest.pop()
        if isinstance(part, Mapping | list):
            yield part, depth
            inner = part.values() if isinstance(part, Mapping) else part
            rest.extend((each, depth + 1) for each in inner)


def _height(value: Any) -> int:
    return max((depth for _, depth in parts_of(value)), default=0)


def _properties_in(part: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of properties, and the length of the longest sequence of optional ones."""
    properties, names = part.get("properties"), part.get("required")
    if not isinstance(properties, Mapping):
        return 0, 0
    required = {each for each in names if isinstance(each, str)} if isinstance(names, list) else set[str]()
    runs = groupby(properties, required.__contains__)
    return len(properties), max((len(list(run)) for is_required, run in runs if not is_required), default=0)


def _target(schema: Any, reference: str) -> Any:
    """Return the part of a schema that a reference names; the whole schema if it names another one."""
    part = schema
    for name in unquote(reference).partition("#")[2].split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(key, schema)
        elif isinstance(part, list) and key.isdecimal() and len(key) < 9 and int(key) < len(part):
            part = part[int(key)]
        else:
            return schema
    return part
