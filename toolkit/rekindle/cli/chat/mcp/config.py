"""Files with MCP servers, in the formats of Claude Code, Claude Desktop, Cursor and VS Code."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from rekindle.cli.chat.mcp.variables import environment_of, project_of, replaced
from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.core.keywords import likely
from rekindle.core.request.checks import preview

T = TypeVar("T")

SERVERS: Final = ("mcpServers", "servers")
"""The keys of servers: of Claude Code, Claude Desktop and Cursor, and of VS Code."""
EXAMPLE: Final = '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "PACKAGE"]}}}'
_COMMON: Final = ("type", "timeout", "disabled")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("command", "args", "env", "cwd", "envFile", *_COMMON),
    "url": ("url", "headers", *_COMMON),
}
"""The keys of a server, by the key of its way."""
_OF_OTHERS: Final = frozenset(
    {"alwaysAllow", "autoApprove", "alwaysLoad", "description", "name", "version", "gallery", "dev", "disabledTools"}
)
"""Keys about the windows and the permissions of other programs."""
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("stdio",),
    "url": ("http", "sse", "streamable-http", "streamableHttp"),
}
_MOST_SECONDS: Final = 3600
"""Larger time limits are in milliseconds, as Claude Code has them."""
_COMMENT: Final = re.compile(r"""("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])""", re.DOTALL)
"""Texts, and the additions of JSON with comments, as VS Code reads it."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """An MCP server of a file: a program, or an address.

    Attributes:
        name: its name in the file.
        command: the program and its arguments; empty for an address.
        env: variables of the program, added to the basic ones.
        cwd: the program's directory; None for this process's.
        url: the address of streamable HTTP, or of SSE; empty for a program.
        headers: the headers of its requests.
        is_sse: whether the address is one of SSE.
        limit: the longest time of a start and of a call, in seconds; None for the chat's.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] | None = None
    is_sse: bool = False
    limit: float | None = None


def read_servers(paths: Sequence[str]) -> list[ServerConfig]:
    """Return the servers of files, without disabled ones; see `variables.replaced` for variables in values.

    Other keys beside the servers are settings of other programs, and are left alone.

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
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(_COMMENT.sub(lambda match: match[1] or "", text))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is no JSON file with MCP servers, such as {EXAMPLE}: {error}") from error
    servers = None
    if isinstance(content, dict):
        within = content["mcp"] if isinstance(content.get("mcp"), dict) else content  # in the settings of VS Code
        servers = next((within[key] for key in SERVERS if within.get(key)), None)
    if not isinstance(servers, dict) or not servers:
        keys = ", ".join(content) if isinstance(content, dict) else preview(content)
        raise InvalidRequest(f"{path} has no servers under {SERVERS[0]!r}, as in {EXAMPLE}; it has {keys or 'nothing'}")
    places = ((f"{path}, server {name!r}", name, fields) for name, fields in servers.items())
    return [config for place, name, fields in places if (config := _server(path, place, name, fields)) is not None]


def _server(path: Path, place: str, name: str, fields: Any) -> ServerConfig | None:
    """Return a server; None for a disabled one."""
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{place}: expected an object with command or url, got {preview(fields)}")
    if fields.get("disabled") is True:
        return None
    ways = [way for way in _KEYS if way in fields]
    if len(ways) != 1:
        raise InvalidRequest(f"{place}: needs either command (a program) or url (an address), got {', '.join(fields)}")
    (way,) = ways
    for key in fields:
        if key not in _KEYS[way] and key not in _OF_OTHERS:
            hint = likely(key, _KEYS[way]) or f"known are {', '.join(_KEYS[way])}"
            raise InvalidRequest(f"{place}: unknown key {key!r} beside {way}; {hint}")
    if (kind := fields.get("type", _TYPES[way][0])) not in _TYPES[way]:
        raise InvalidRequest(f"{place}: type {kind!r} is not supported; with {way} it is {' or '.join(_TYPES[way])}")
    texts, limit = _Texts(path, place, fields), _limit(place, fields.get("timeout"))
    if way == "url":
        url, headers = texts.one("url"), texts.mapping("headers")
        return ServerConfig(name, url=url, headers=headers, is_sse=kind == "sse", limit=limit)
    command = (texts.one("command"), *texts.many("args"))
    cwd = texts.one("cwd") if "cwd" in fields else None
    return ServerConfig(name, command, texts.environment(), cwd, limit=limit)


def _limit(place: str, value: Any) -> float | None:
    """Return a time limit in seconds."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InvalidRequest(f"{place}: timeout must be a number of seconds above 0, got {preview(value)}")
    return value if value <= _MOST_SECONDS else value / 1000


class _Texts:
    """Texts of a server's fields, with the values of variables in place."""

    def __init__(self, path: Path, place: str, fields: Mapping[str, Any]):
        self._path, self._place, self._fields = path, place, dict(fields)

    def one(self, key: str) -> str:
        """Return a text of at least one character."""
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
        """Return texts by name, without nulls; None without the key."""
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InvalidRequest(f"{self._place}: {key} must be an object of texts, got {preview(value)}")
        return {name: self._text(key, each) for name, each in value.items() if each is not None}

    def environment(self) -> dict[str, str] | None:
        """Return the variables of `env`, over those in the file `envFile`; None without both."""
        variables = self._fields.get("env")
        if isinstance(variables, dict):  # VS Code takes numbers, and null for a variable without a value
            self._fields["env"] = {
                name: str(each) if type(each) in (int, float) else each for name, each in variables.items()
            }
        own = self.mapping("env")
        if self._fields.get("envFile") is None:
            return own
        file = project_of(self._path) / self.one("envFile")
        return {**self._at_key("envFile", lambda: environment_of(file)), **(own or {})}

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{self._place}: {key} takes texts, got {preview(value)}")
        return self._at_key(key, lambda: replaced(value, self._path))

    def _at_key(self, key: str, work: Callable[[], T]) -> T:
        """Return the result of work; an error names the server and the key."""
        try:
            return work()
        except InvalidRequest as error:
            raise InvalidRequest(f"{self._place}: {key} {error}") from error
