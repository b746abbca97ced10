"""Arguments of a tool call as JSON text, piece by piece while the model writes the call."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.formats.responses.calls import allows, parameters_of, parse_text
from rekindle.formats.responses.contents import Malformed, parse

CLOSED: Final = {"{": "}", "[": "]"}
_MARKS: Final = frozenset("{}[],:")
_BETWEEN: Final = " \t\r\n;"
"""White space, and a separator of calls."""
_SCALAR: Final = re.compile(r"[^\s;{}\[\],:\"]+")
_PLAIN: Final = re.compile(r'[^"\\]+')
_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^u])")


class BrokenJson(Exception):
    """Error for a text that cannot become JSON."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of JSON, or a piece of a string.

    Attributes:
        kind: a mark, "string" or "scalar".
        text: the mark, the scalar as `json.dumps` writes it, or the next characters of the string.
        begins, ends: whether the piece is the first or the last one of its string.
        whole: the string so far.
    """

    kind: str
    text: str
    begins: bool = True
    ends: bool = True
    whole: str = ""


class JsonTokens:
    """Splitter of growing JSON text into tokens. Line ends and other control characters may stand in strings."""

    def __init__(self) -> None:
        self._rest = ""
        self._string: str | None = None  # the string so far

    def feed(self, text: str) -> Iterator[Token]:
        """Yield the tokens that are complete by now, and the pieces of a string that is not.

        Raises:
            BrokenJson: the text is not JSON.
        """
        self._rest += text
        while self._rest:
            token = self._outside() if self._string is None else self._inside(self._string)
            if token is None:
                return
            yield token

    def _outside(self) -> Token | None:
        self._rest = self._rest.lstrip(_BETWEEN)
        first = self._rest[:1]
        if first in _MARKS or first == '"':
            self._rest = self._rest[1:]
            if first != '"':
                return Token(first, first) if first else None
            self._string = ""
            return Token("string", "", begins=True, ends=False)
        match = _SCALAR.match(self._rest)
        if match is None or match.end() == len(self._rest):  # more of it may come
            return None
        self._rest = self._rest[match.end() :]
        return Token("scalar", json.dumps(_value(match[0])))

    def _inside(self, so_far: str) -> Token | None:
        """Return the next piece of a string, or None to wait for the rest of an escape."""
        text, place = "", 0
        while place < len(self._rest):
            if match := _PLAIN.match(self._rest, place):
                text += match[0]
            elif self._rest[place] == '"':
                self._rest, self._string = self._rest[place + 1 :], None
                return Token("string", text, begins=False, whole=so_far + text)
            elif len(self._rest) - place < _LONGEST_ESCAPE and _may_grow(self._rest[place:]):
                break
            elif match := _ESCAPE.match(self._rest, place):
                text += _value(f'"{match[0]}"')
            else:
                raise BrokenJson
            place = match.end()
        self._rest, self._string = self._rest[place:], so_far + text
        return Token("string", text, begins=False, ends=False, whole=so_far + text) if text else None


_LONGEST_ESCAPE: Final = 12


def _may_grow(escape: str) -> bool:
    """Return True if an escape at the end of a text may be incomplete."""
    if len(escape) == 1:
        return True
    if escape[1] != "u":
        return False
    return len(escape) < 6 or (escape[2:4].lower() in ("d8", "d9", "da", "db") and '"' not in escape)


def _value(text: str) -> Any:
    try:
        return parse("json", text, {})
    except Malformed as error:
        raise BrokenJson from error


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Places of the parts of a call in the JSON of an answer.

    Attributes:
        name: the key of the function's name; None if the JSON is the arguments alone.
        arguments: the keys of the arguments.
    """

    name: str | None
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: str, content_args: Mapping[str, Any], transform: Any) -> "CallKeys | None":
        """Return the places for a field of a response template; None if its arguments are no JSON as it is."""
        function = transform.get("function") if isinstance(transform, Mapping) else None
        if content != "json" or content_args:
            return None
        match function:
            case "{content}":
                return cls("name", ("arguments", "parameters"))
            case {"name": "{name}", "arguments": "{content}"}:
                return cls(None)
            case {"name": str(name), "arguments": str(arguments)}:
                return cls(name.strip("{}"), (arguments.strip("{}"),))
        return None


class CallPieces:
    """Reader of the calls in one part of an answer.

    It gives a call's name and the arguments in the text of `json.dumps`, except for the last brace: whether a call is
    complete shows only its end.

    Args:
        keys: the places of names and arguments.
        name: the function's name, if it stands before the JSON.
        tools: JSON schemas of the tools. Calls of other functions give no pieces.
    """

    def __init__(self, keys: CallKeys, name: str | None, tools: Sequence[Mapping[str, Any]]) -> None:
        self._keys, self._tools, self._name = keys, tools, name
        self._tokens: JsonTokens | None = JsonTokens()
        self._arguments: _Arguments | None = None
        self._path: list[str] = []
        self._key: str | None = None
        self._place = 0
        self._texts: dict[int, list[str]] = {}

    def feed(self, text: str) -> list[tuple[int, str, str]]:
        """Return the next pieces in a text: the number of the call, its function, and JSON text of its arguments."""
        pieces: list[tuple[int, str, str]] = []
        if self._tokens is None:
            return pieces
        try:
            for token in self._tokens.feed(text):
                piece = self._take(token)
                if piece and self._name is not None:
                    self._texts.setdefault(self._place, []).append(piece)
                    pieces.append((self._place, self._name, piece))
        except BrokenJson:  # the end of the part says more
            self._tokens = None
        return pieces

    @property
    def has_begun(self) -> bool:
        """True if a piece was given."""
        return bool(self._texts)

    def text_of(self, place: int) -> str | None:
        """Return the text given for a call, None for none."""
        return "".join(self._texts[place]) if place in self._texts else None

    def _take(self, token: Token) -> str:
        """Take a token, and return the next text of the arguments."""
        if self._arguments is not None:
            text = self._arguments.take(token)
            if self._arguments.is_over:
                self._arguments = None
            return text
        if self._keys.name is None:
            return self._begin(token) if not self._path else ""
        return self._outside(token)

    def _outside(self, token: Token) -> str:
        """Take a token outside of arguments."""
        in_call = bool(self._path) and self._path[-1] == "{" and "{" not in self._path[:-1]
        match token.kind:
            case "{" | "[":
                if in_call and self._key in self._keys.arguments and token.kind == "{":
                    return self._begin(token)
                self._path.append(token.kind)
                self._key = None
            case "}" | "]":
                if not self._path or CLOSED[self._path.pop()] != token.kind:
                    raise BrokenJson
                if token.kind == "}" and "{" not in self._path:
                    self._place, self._name = self._place + 1, None
                self._key = None
            case "string" if in_call and token.ends:
                if self._key is None:
                    self._key = token.whole
                elif self._key == self._keys.name:
                    self._name = token.whole
            case ",":
                self._key = None
        return ""

    def _begin(self, token: Token) -> str:
        """Begin the arguments, if the function is known by now."""
        schema = None if self._name is None else parameters_of(self._name, self._tools)
        if schema is None or token.kind != "{":
            raise BrokenJson
        if self._keys.name is None:
            self._path.append(token.kind)
        self._arguments = _Arguments(schema)
        return self._arguments.take(token)


class _Arguments:
    """Writer of the arguments of one call in the text of `json.dumps`.

    Args:
        schema: the schema of the arguments, to convert texts as `calls_of` does.

    Attributes:
        is_over: whether the last brace has come.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._path: list[str] = []
        self._key: str | None = None  # the last key of the outermost object, if its value is next
        self._pending: str | None = None  # the start of a text that may become another value
        self.is_over = False

    def take(self, token: Token) -> str:
        """Take a token, and return the text ready by now."""
        match token.kind:
            case "{" | "[":
                self._path.append(token.kind)
                return token.kind
            case "}" | "]":
                if CLOSED[self._path.pop()] != token.kind:
                    raise BrokenJson
                self.is_over = not self._path
                return "" if self.is_over else token.kind
            case ",":
                if len(self._path) == 1:
                    self._key = None
                return ", "
            case ":":
                return ": "
            case "string":
                return self._string(token)
        return token.text

    def _string(self, token: Token) -> str:
        if len(self._path) > 1 or self._key is None:
            if len(self._path) == 1 and token.ends:
                self._key = token.whole
            return _quoted(token.text, begins=token.begins, ends=token.ends)
        kind = self._properties.get(self._key)
        if token.begins:
            self._pending = ""
        if self._pending is None:
            return _quoted(token.text, begins=False, ends=token.ends)
        self._pending += token.text
        if not token.ends:
            if not allows("string", kind, self._schema):
                return ""
            if allows("null", kind, self._schema) and _may_be_null(self._pending):
                return ""
            text, self._pending = self._pending, None
            return _quoted(text, begins=True, ends=False)
        text, self._pending = self._pending, None
        return json.dumps(parse_text(text, kind, self._schema), ensure_ascii=False)


def _quoted(text: str, *, begins: bool, ends: bool) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted[not begins : len(quoted) - (not ends)]


def _may_be_null(text: str) -> bool:
    word = text.lstrip()
    return any(name.startswith(word.rstrip()) for name in ("null", "None"))


def remainder(call: Mapping[str, Any], prefix: str) -> str:
    """Return the text of arguments after the pieces given already."""
    whole = json.dumps(call, ensure_ascii=False)
    return whole[len(prefix) :] if whole.startswith(prefix) else "}"  # a key has come twice, and the last one counts
