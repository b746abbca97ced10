"""Terms of grammars in llguidance's Lark syntax: texts with special tokens, JSON, and text without some delimiters."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Style of JSON arguments, as in the JSON of chat templates."""
_STRICT: Final = {"lenient": False, "coerce_one_of": False}
"""llguidance must enforce every part of a schema."""
_UNESCAPED: Final = re.compile(r"(\\.)|/", re.DOTALL)
_ANYTHING: Final = "/(.|\\n)*/"
_DEFINITIONS: Final = ("$defs", "definitions")


def literal(text: str) -> str:
    """Return the term of a text without special tokens."""
    return json.dumps(text, ensure_ascii=False)


def json_of(schema: Any, root: Mapping[str, Any] | None = None) -> str:
    """Return the term for JSON of a schema.

    Args:
        schema: the schema; anything else than an object allows any value.
        root: the schema that contains this one and the definitions for its references.
    """
    definitions = {name: root[name] for name in _DEFINITIONS if root and name in root}
    rule_schema = dict(schema) if isinstance(schema, Mapping) else {}
    options = {**JSON_STYLE, **_STRICT}
    return f"%json {json.dumps({**definitions, **rule_schema, 'x-guidance': options}, ensure_ascii=False)}"


def without(*texts: str) -> str:
    """Return a terminal for nonempty text without any of the given texts."""
    forbidden = "|".join(re.escape(text).replace("/", "\\/") for text in texts)
    return f"/(.|\\n)+/ & ~/(.|\\n)*({forbidden})(.|\\n)*/"


def text_of(schema: Mapping[str, Any], *delimiters: str) -> tuple[str, bool]:
    """Return a terminal for nonempty text of a string schema without any of some delimiters.

    Args:
        schema: the schema. Its lengths and its pattern count.
        delimiters: the delimiters.

    Returns:
        The terminal, and whether the text may be empty too.
    """
    low, high, pattern = schema.get("minLength", 0), schema.get("maxLength", ""), schema.get("pattern", "")
    parts = [without(*delimiters)]
    parts += [f"/(.|\\n){{{low},{high}}}/"] if low or high != "" else []
    parts += [f"({_search(pattern)})"] if pattern else []
    return " & ".join(parts), not low and not pattern


def regex_literal(pattern: str) -> str:
    """Return a regular expression as a literal of a grammar."""
    inside = _UNESCAPED.sub(lambda match: match[1] or "\\/", pattern)
    return f"/{inside}/"


def _search(pattern: str) -> str:
    """Return the terminal for texts in which a pattern is found; anchors inside of the pattern are not supported."""
    is_last = re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern) is not None
    inside = pattern.removeprefix("^")[: -1 if is_last else None]
    begin, end = "" if pattern.startswith("^") else _ANYTHING, "" if is_last else _ANYTHING
    return f"{begin} {regex_literal(f'(?:{inside})')} {end}"


@dataclass(frozen=True, slots=True)
class TextTerms:
    """Converter of texts to grammar terms.

    Attributes:
        special: ids of the possible delimiter tokens by text.
    """

    special: Mapping[str, int]

    def of(self, text: str) -> str:
        """Return the terms of a text, with special tokens by id."""
        present = sorted((mark for mark in self.special if mark and mark in text), key=len, reverse=True)
        if not present:
            return literal(text) if text else ""
        pieces = re.split("(" + "|".join(map(re.escape, present)) + ")", text)
        terms = (f"<[{self.special[each]}]>" if each in self.special else literal(each) for each in pieces if each)
        return " ".join(terms)
