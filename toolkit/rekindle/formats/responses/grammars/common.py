"""Definitions of the terminals in the library `common` of Lark grammars."""

import re
from collections.abc import Mapping
from typing import Final

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
