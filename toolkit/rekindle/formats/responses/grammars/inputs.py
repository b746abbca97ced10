"""Regular expressions of the inputs of tools, from their Lark grammars."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.constraints.parser import parse_bytes

_INT: Final = "[0-9]+"
_DECIMAL: Final = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"
_EXPONENT: Final = f"[eE][+-]?{_INT}"
_FLOAT: Final = f"(?:{_DECIMAL}(?:{_EXPONENT})?|{_INT}{_EXPONENT})"
TERMINALS: Final[Mapping[str, str]] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_INT}|{_FLOAT})",
    "SIGNED_NUMBER": f"[+-]?(?:{_INT}|{_FLOAT})",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""Regular expressions by name."""
_IMPORT: Final = re.compile(
    r"^[ \t]*%import[ \t]+common[ \t]*(?:\.[ \t]*(\w+)(?:[ \t]*->[ \t]*(\w+))?|\(([\w\s,]+)\))", re.MULTILINE
)


def with_definitions(grammar: str) -> str:
    """Return a grammar with the definitions of its imports from `common`, as far as they are known."""
    return _IMPORT.sub(_definitions, grammar)


def _definitions(match: re.Match[str]) -> str:
    names = [match[1]] if match[1] else re.findall(r"\w+", match[3])
    if not set(names) <= set(TERMINALS):
        return match[0]
    return "\n".join(f"{match[2] or name}: /{TERMINALS[name]}/" for name in names)


_STRING: Final = r'"(?:\\.|[^"\\])*"'
_TOKEN: Final = re.compile(
    rf"(?P<nothing>\s+|(?://|\#)[^\n]*|->\s*\w+)|(?P<first>{_STRING})\s*\.\.\s*(?P<last>{_STRING})"
    rf"|(?P<string>{_STRING})(?P<case>i?)|/(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[imsux]*)"
    r"|~\s*(?P<least>\d+)(?:\s*\.\.\s*(?P<most>\d+))?|(?P<name>[A-Za-z_][\w-]*)|(?P<sign>[][()|*+?]|\{[\d,\s]+\})"
)
"""A token of a rule with a regular expression."""
_HEADER: Final = re.compile(r"^[ \t]*[?!]*([A-Za-z_][\w-]*)[ \t]*:", re.MULTILINE)
_BEFORE: Final = ""
"""The name of the text before the first rule."""
_SIGNS: Final = {"(": "(?:", "[": "(?:", "]": ")?"}
_LONGEST: Final = 1 << 16
_DEEPEST: Final = 100
"""Bounds of a grammar: the characters of the expressions of all rules, and the rules within rules."""


def input_schema(grammar: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments of a tool with one argument, a text that follows a Lark grammar.

    Args:
        grammar: the grammar of the text.
        schema: the schema of the arguments.

    Raises:
        InvalidRequest: the grammar cannot be parsed or has no regular expression, or the tool has other arguments.
    """
    keys = list(schema.get("properties") or {})
    if len(keys) != 1:
        raise InvalidRequest(f"a tool with a grammar has one argument, a text; it has {', '.join(keys) or 'none'}")
    parse_bytes("grammar", grammar, "the grammar")
    pattern = regex_of_grammar(grammar)
    if pattern is None:
        raise InvalidRequest(
            "its grammar has recursion, %ignore, or another part without a regular expression: write it with rules, "
            'strings, ranges and regular expressions, or use tool_choice "auto"'
        )
    text = {"type": "string", "pattern": f"^(?:{pattern})$"}
    return {"type": "object", "properties": {keys[0]: text}, "required": keys, "additionalProperties": False}


def regex_of_grammar(grammar: str) -> str | None:
    """Return the regular expression of the texts of a valid Lark grammar.

    Returns:
        The expression. None for a grammar with recursion, `%ignore`, intersections, JSON schemas or special tokens, and
        for a very long expression.
    """
    before, *parts = _HEADER.split(with_definitions(grammar))
    rules = dict(zip(parts[::2], parts[1::2], strict=True))
    expressions = _Expressions({_BEFORE: before, **rules})
    try:
        return [expressions.of(name, 0) for name in (_BEFORE, *rules, "start")][-1]
    except _NotRegularError:
        return None


class _NotRegularError(Exception):
    """A grammar has no regular expression."""


class _Expressions:
    """The regular expressions of rules.

    Args:
        rules: the bodies of the rules by name.
    """

    def __init__(self, rules: Mapping[str, str]):
        self._rules = rules
        self._expressions: dict[str, str | None] = {}  # None for a rule in the making
        self._length = 0

    def of(self, name: str, depth: int) -> str:
        """Return the expression of a rule within so many others."""
        if name not in self._expressions:
            if name not in self._rules or depth > _DEEPEST:
                raise _NotRegularError
            self._expressions[name] = None
            self._expressions[name] = self._body(self._rules[name], depth)
        expression = self._expressions[name]
        if expression is None:
            raise _NotRegularError
        return f"(?:{expression})"

    def _body(self, body: str, depth: int) -> str:
        pieces, place = list[str](), 0
        while place < len(body):
            match = _TOKEN.match(body, place)
            if match is None or self._length > _LONGEST:
                raise _NotRegularError
            pieces.append(self.of(match["name"], depth + 1) if match["name"] else _piece(match))
            self._length += len(pieces[-1])
            place = match.end()
        return "".join(pieces)


def _piece(match: re.Match[str]) -> str:
    """Return the expression of a token other than a name."""
    if match["first"] is not None:
        return f"[{_quoted(match['first'])}-{_quoted(match['last'])}]"
    if match["string"] is not None:
        return f"(?{match['case']}:{_quoted(match['string'])})"
    if match["regex"] is not None:
        return f"(?{match['flags']}:{match['regex']})"
    if match["least"] is not None:
        return f"{{{match['least']},{match['most'] or match['least']}}}"
    return "" if match["nothing"] else _SIGNS.get(match["sign"], match["sign"])


def _quoted(string: str) -> str:
    """Return the expression for the text of a string in a Lark grammar."""
    text = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", string), strict=False)
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)
