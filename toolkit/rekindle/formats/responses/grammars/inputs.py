"""Grammars of the inputs of tools, from their Lark grammars: as text in a call, or as the text of a JSON string."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.responses.grammars.call_forms import TYPED, CallForm
from rekindle.formats.responses.grammars.common import with_definitions
from rekindle.formats.responses.grammars.escaped import escaped_regex, escaped_text
from rekindle.formats.responses.grammars.terms import TextTerms, literal

_STRING: Final = r'"(?:\\.|[^"\\])*"'
_TOKENS: Final = re.compile(
    rf"(?P<comment>(?://|\#)[^\n]*)|(?P<alias>->\s*\w+)|(?P<first>{_STRING})\s*\.\.\s*(?P<last>{_STRING})"
    rf"|(?P<string>{_STRING})(?P<case>i?)|/(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[a-z]*)"
    r"|(?P<ignore>%ignore\b)|(?P<other>%\w+|<[^<>\s]+>|~(?!\s*\d)|@\w+)|(?P<name>[A-Za-z_][\w-]*)"
)
"""The tokens of a grammar that may change; white space, operators and numbers stand between."""
_HEADER: Final = re.compile(r"^[ \t]*[?!]*([A-Za-z_][\w-]*)(?:\.\d+)?[ \t]*:", re.MULTILINE)
Convert = Callable[[re.Match[str]], str]


def input_rules(grammar: str, name: str, end: str, *, in_json: bool) -> list[str]:
    """Return the rules of a tool's input and the text after it.

    A grammar without recursion becomes one terminal with this text, because a terminal for any text would take the text
    as well. A grammar with recursion stays a grammar of its own.

    Args:
        grammar: the Lark grammar of the input.
        name: the name of the rule; the names of the others begin with it.
        end: the text after the input.
        in_json: whether the input is the text of a JSON string.

    Raises:
        InvalidRequest: a call cannot have a part of the grammar.
    """
    plain = _TOKENS.sub(_plain, with_definitions(grammar))
    convert = _escape if in_json else _keep
    if not _recurs(plain):
        prefix = f"{name}_of_".upper()
        body = _HEADER.sub(r"\1:", _TOKENS.sub(partial(_rename, prefix, convert), plain))
        text = f"{name}_text".upper()
        return [f"{name}: {text}", f"{text}: {prefix}R_START {literal(end)}", *filter(str.strip, body.splitlines())]
    overlaps = [match[0] for match in _TOKENS.finditer(plain) if _overlaps(match, end, in_json=in_json)]
    if overlaps:
        excluded = "line ends, quotes and backslashes" if in_json else repr(end[:1])
        raise InvalidRequest(
            f"the grammar of a required call has recursion or %ignore beside {overlaps[0]!r:.60}, where the end of the "
            f'input may be taken for its text: exclude {excluded} from the expression, or use tool_choice "auto"'
        )
    return [f"{name}: %lark {{\n{_TOKENS.sub(convert, plain)}\n}} {literal(end)}"]


def input_of_call(grammar: str, name: str, schema: Mapping[str, Any], form: CallForm, terms: TextTerms) -> list[str]:
    """Return the rules of the arguments of a tool, whose only one is a text that follows a grammar.

    Args:
        grammar: the Lark grammar of the text.
        name: the name of the rule.
        schema: the schema of the arguments.
        form: the form of calls.
        terms: converter of texts.

    Raises:
        InvalidRequest: a call cannot have a part of the grammar, or the tool has other arguments.
    """
    keys = list(schema.get("properties") or {})
    if len(keys) != 1:
        raise InvalidRequest(f"a tool with a grammar has one argument, a text; it has {', '.join(keys) or 'none'}")
    (key,), notation, own = keys, form.notation, f"{name}_input"
    if form.tag is not None:
        begin, key_end, value_end = form.tag
        before = terms.of(f"{begin}{key}{key_end.replace(TYPED, 'true')}")
        marks = (value_end.index(mark) for mark in terms.special if mark and mark in value_end)
        at = min(marks, default=len(value_end))
        rules = input_rules(grammar, own, value_end[:at], in_json=False)
        return [f"{name}: {before} {own} {terms.of(value_end[at:])}", *rules]
    if notation is not None and notation.mark is not None and notation.mark in terms.special:
        mark, rules = terms.of(notation.mark), input_rules(grammar, own, "", in_json=False)
        return [f"{name}: {terms.of(f'{key}{notation.argument_end}')} {mark} {own} {mark}", *rules]
    begin, end = (f'{{{literal(key)}: "', '"}') if notation is None else (f'{key}{notation.argument_end}"', '"')
    return [f"{name}: {literal(begin)} {own}", *input_rules(grammar, own, end, in_json=True)]


def _plain(match: re.Match[str]) -> str:
    """Return a token without comments and names of alternatives.

    Raises:
        InvalidRequest: a call cannot have the token.
    """
    if match["other"] is not None:
        raise InvalidRequest(
            f"the grammar of a required call cannot have {match['other']!r:.40}: write it with rules, strings, ranges "
            'and regular expressions, or use tool_choice "auto"'
        )
    return "" if match["comment"] is not None or match["alias"] is not None else match[0]


def _recurs(grammar: str) -> bool:
    """Return True for a grammar with recursive rules or ignored terminals."""
    headers = list(_HEADER.finditer(grammar))
    ends = [header.start() for header in headers[1:]] + [len(grammar)]
    uses = {
        header[1]: {match["name"] for match in _TOKENS.finditer(grammar, header.end(), end) if match["name"]}
        for header, end in zip(headers, ends, strict=True)
    }
    while leaves := [name for name, others in uses.items() if not others & set(uses)]:
        for name in leaves:
            del uses[name]
    return bool(uses) or any(match["ignore"] for match in _TOKENS.finditer(grammar))


def _rename(prefix: str, convert: Convert, match: re.Match[str]) -> str:
    """Return a token of a terminal: names of rules become names of terminals."""
    if match["name"] is None:
        return convert(match)
    kind = "T" if match["name"].lstrip("_")[:1].isupper() else "R"
    return f"{prefix}{kind}_{match['name'].upper()}"


def _keep(match: re.Match[str]) -> str:
    return match[0]


def _escape(match: re.Match[str]) -> str:
    """Return a token over escaped characters."""
    if match["first"] is not None:
        first, last = (re.escape(_text(match[name])) for name in ("first", "last"))
        return f"/{escaped_regex(f'[{first}-{last}]', '')}/"
    if match["regex"] is not None:
        return f"/{escaped_regex(match['regex'], match['flags'])}/{match['flags']}"
    if match["string"] is None:
        return match[0]
    text = _text(match["string"])
    if match["case"] and text:
        return f"/{escaped_regex(''.join(map(_quoted, text)), 'i')}/i"
    return literal(escaped_text(text))


def _overlaps(match: re.Match[str], end: str, *, in_json: bool) -> bool:
    """Return True for an expression that may take the start of another text, as a backslash or the end of the input."""
    if match["regex"] is None:
        return False
    escaped = escaped_regex(match["regex"], match["flags"])
    return "&&" in escaped if in_json else bool(end) and re.search(match["regex"], end[:1]) is not None


def _text(string: str) -> str:
    """Return the text of a string in a Lark grammar."""
    text: str = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", string), strict=False)
    return text


def _quoted(char: str) -> str:
    """Return the expression for one character."""
    return char if char.isalnum() else f"\\x{{{ord(char):x}}}"
