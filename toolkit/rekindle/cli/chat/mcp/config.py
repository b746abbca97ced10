"""Files with MCP servers, in the format of Claude Desktop and Cursor."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.core.keywords import likely
from rekindle.core.request.checks import preview

SERVERS: Final = "mcpServers"
EXAMPLE: Final = '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "PACKAGE"]}}}'
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("command", "args", "env", "cwd", "type"),
    "url": ("url", "headers", "type"),
}
"""The keys of a server, by the key that says how to reach it."""
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("stdio",),
    "url": ("http", "streamable-http", "streamableHttp"),
}
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?(\w+)\}")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """An MCP server of a file: a program, or an address.

    Attributes:
        name: its name in the file.
        command: the program and its arguments; empty for an address.
        env: variables of the program, added to the basic ones.
        cwd: the program's directory; None for that of this process.
        url: the address of streamable HTTP; empty for a program.
        headers: the headers of its requests.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] | None = None


def read_servers(paths: Sequence[str]) -> list[ServerConfig]:
    """Return the servers of files. `${NAME}` in a value is the variable of the environment.

    Other keys beside `mcpServers` are settings of other programs, and are left alone.

    Raises:
        StorageError: a file cannot be read.
        InvalidRequest: a file has another format, or two servers have one name.
    """
    configs: list[ServerConfig] = []
    for path in paths:
        configs += _read(Path(path).expanduser())
    names = [config.name for config in configs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"two MCP servers are called {name!r}; rename one in its file")
    return configs


def _read(path: Path) -> list[ServerConfig]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequest(f"{path} is no JSON file with MCP servers, such as {EXAMPLE}: {error}") from error
    servers = content.get(SERVERS) if isinstance(content, dict) else None
    if not isinstance(servers, dict) or not servers:
        keys = ", ".join(content) if isinstance(content, dict) else preview(content)
        raise InvalidRequest(f"{path} has no servers under {SERVERS!r}, as in {EXAMPLE}; it has {keys or 'nothing'}")
    return [_server(f"{path}, server {name!r}", name, fields) for name, fields in servers.items()]


def _server(place: str, name: str, fields: Any) -> ServerConfig:
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{place}: expected an object with command or url, got {preview(fields)}")
    ways = [way for way in _KEYS if way in fields]
    if len(ways) != 1:
        raise InvalidRequest(f"{place}: needs either command (a program) or url (an address), got {', '.join(fields)}")
    (way,) = ways
    for key in fields:
        if key not in _KEYS[way]:
            hint = likely(key, _KEYS[way]) or f"known are {', '.join(_KEYS[way])}"
            raise InvalidRequest(f"{place}: unknown key {key!r} beside {way}; {hint}")
    if (kind := fields.get("type", _TYPES[way][0])) not in _TYPES[way]:
        raise InvalidRequest(f"{place}: type {kind!r} is not supported; with {way} it is {' or '.join(_TYPES[way])}")
    texts = _Texts(place, fields)
    if way == "url":
        return ServerConfig(name, url=texts.one("url"), headers=texts.mapping("headers"))
    command = (texts.one("command"), *texts.many("args"))
    return ServerConfig(name, command, texts.mapping("env"), texts.one("cwd") if "cwd" in fields else None)


class _Texts:
    """Texts of a server's fields, with variables of the environment in place."""

    def __init__(self, place: str, fields: Mapping[str, Any]):
        self._place, self._fields = place, fields

    def one(self, key: str) -> str:
        """Return a text that is not empty."""
        text = self._text(key, self._fields[key])
        if not text:
            raise InvalidRequest(f"{self._place}: {key} is empty")
        return text

    def many(self, key: str) -> list[str]:
        """Return a list of texts; empty without the key."""
        value = self._fields.get(key, [])
        if not isinstance(value, list):
            raise InvalidRequest(f"{self._place}: {key} must be a list of texts, got {preview(value)}")
        return [self._text(key, each) for each in value]

    def mapping(self, key: str) -> dict[str, str] | None:
        """Return texts by name; None without the key."""
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InvalidRequest(f"{self._place}: {key} must be an object of texts, got {preview(value)}")
        return {name: self._text(key, each) for name, each in value.items()}

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{self._place}: {key} takes texts, got {preview(value)}")
        return _VARIABLE.sub(lambda match: self._variable(key, match[1]), value)

    def _variable(self, key: str, name: str) -> str:
        if name not in os.environ:
            raise InvalidRequest(f"{self._place}: {key} needs the variable {name} of the environment, which is not set")
        return os.environ[name]
