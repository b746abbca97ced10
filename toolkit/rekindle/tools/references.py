"""References inside of a JSON schema, resolved in place within a bound: another schema may hold the result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from rekindle.core.errors import InvalidRequest

ROOM: Final = 1 << 17
"""Most characters of the copies of all referenced parts together: a prompt has room for no more."""
_DEPTHS: Final = (64, 8, 6, 5, 4, 3, 2, 1, 0)
"""Numbers of references within references to resolve: the first one whose copies have room."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords with schemas by name: a name there is no keyword."""
_DATA: Final = frozenset({"enum", "const", "default", "examples", "required", "type"})
"""Keywords with values instead of schemas."""
_DEFINITIONS: Final = ("$defs", "definitions")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


def without_references(schema: Mapping[str, Any]) -> Any:
    """Return a JSON schema with its references replaced by the parts of their names.

    References are pointers of RFC 6901, anchors, and the schema's own addresses. A part within itself, and a part
    beyond the bounds, has its type alone. A reference to another document allows any value.

    Raises:
        InvalidRequest: the schema is nested too deeply.
    """
    try:
        document = _Document.of(schema)
        for depth in _DEPTHS:
            try:
                return _Resolver(document, depth).schema(schema, document.base, (id(schema),))
            except _NoRoom:
                continue
    except RecursionError as error:
        raise InvalidRequest("a schema of a tool is nested too deeply: at most a hundred levels can be told") from error
    raise AssertionError("without copies, there is room")


class _NoRoom(Exception):
    """Signal of copies larger than `ROOM`."""


@dataclass(frozen=True, slots=True)
class _Document:
    """The named parts of a schema.

    Attributes:
        base: the address of the schema; empty for none.
        resources: schemas by their addresses.
        anchors: schemas by address and anchor.
    """

    base: str
    resources: dict[str, Any] = field(default_factory=dict)
    anchors: dict[tuple[str, str], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> "_Document":
        """Return the parts of a schema."""
        document = cls(_address("", schema))
        document.resources[document.base] = schema
        document._note(schema, "")
        return document

    def _note(self, schema: Any, base: str) -> None:
        if isinstance(schema, Mapping):
            address = _address(base, schema)
            if address != base:
                self.resources[address] = schema
            for key in _ANCHORS:
                if isinstance(name := schema.get(key), str):
                    self.anchors[address, name] = schema
            base = address
        for part in _parts(schema):
            self._note(part, base)

    def find(self, reference: str, base: str) -> tuple[Any, str]:
        """Return the part of a reference, and the address of its document.

        Raises:
            LookupError: there is none.
        """
        address, fragment = (
            urldefrag(urljoin(base, reference)) if not reference.startswith("#") else (base, reference[1:])
        )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self.anchors[address, fragment], address
        part = self.resources[address]
        for token in fragment.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            part = part[int(key)] if isinstance(part, list) else part[key]
        return part, address


class _Resolver:
    """Copies a schema with its references resolved.

    Args:
        document: the parts of the schema.
        depth: the number of references within references to resolve.
    """

    def __init__(self, document: _Document, depth: int):
        self._document, self._depth, self._room = document, depth, ROOM

    def schema(self, schema: Any, base: str, within: tuple[int, ...]) -> Any:
        """Return a schema with its references resolved.

        Args:
            schema: the schema.
            base: the address of its document.
            within: the parts around it, by identity, from the whole schema on.
        """
        if not isinstance(schema, Mapping):
            return [self.schema(each, base, within) for each in schema] if isinstance(schema, list) else schema
        base = _address(base, schema)
        reference = next((schema[key] for key in _REFERENCES if isinstance(schema.get(key), str)), None)
        rest = {key: each for key, each in schema.items() if reference is None or key not in _REFERENCES}
        own = {
            key: each
            if key in _DATA
            else self._by_name(each, base, within)
            if key in _BY_NAME
            else self.schema(each, base, within)
            for key, each in rest.items()
            if not (key in _DEFINITIONS and isinstance(each, Mapping))
        }
        if len(within) > 1:
            self._take(own)
        return own if reference is None else self._referenced(reference, base, within, own)

    def _by_name(self, schemas: Any, base: str, within: tuple[int, ...]) -> Any:
        if not isinstance(schemas, Mapping):
            return schemas
        return {name: self.schema(each, base, within) for name, each in schemas.items()}

    def _referenced(self, reference: str, base: str, within: tuple[int, ...], own: dict[str, Any]) -> Any:
        """Return the part of a reference, with the keywords beside the reference."""
        try:
            part, address = self._document.find(reference, base)
        except (LookupError, ValueError, TypeError):  # another document's
            return own
        if isinstance(part, bool):
            return own if part else {"not": {}}
        if not isinstance(part, Mapping):
            return own
        if id(part) in within or len(within) > self._depth:
            outline = {**_outline(part), **own}
            self._take(outline)
            return outline
        return {**self.schema(part, address, (*within, id(part))), **own}

    def _take(self, schema: Mapping[str, Any]) -> None:
        """Count the characters of a copy as JSON, without the copies in it."""
        self._room -= 2 + sum(len(key) + len(_own_text(value)) + 6 for key, value in schema.items())
        if self._room < 0:
            raise _NoRoom


def _own_text(value: Any) -> str:
    """Return a value as text, without the schemas in it, but with their names."""
    if isinstance(value, dict):
        return "".join(value)
    return "" if isinstance(value, list) and any(isinstance(each, dict | list) for each in value) else str(value)


def _outline(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a schema's values, without further keywords."""
    if "type" in part:
        return {"type": part["type"]}
    return {"type": "object"} if "properties" in part else {}


def _parts(schema: Any) -> Iterator[Any]:
    """Yield the schemas directly inside of a schema or a list of schemas."""
    if isinstance(schema, list):
        yield from schema
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if (key in _BY_NAME or key in _DEFINITIONS) and isinstance(value, Mapping):
                yield from value.values()
            elif key not in _DATA:
                yield value


def _address(base: str, schema: Mapping[str, Any]) -> str:
    """Return the address of a schema: its own, or the one around it."""
    own = schema.get("$id")
    return urldefrag(urljoin(base, own))[0] if isinstance(own, str) else base
