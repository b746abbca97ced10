"""Variables in files of MCP servers, as Claude Code, Cursor and VS Code write them, and files with an environment."""

import os
import re
from pathlib import Path
from typing import Final

from rekindle.core.errors import InvalidRequest

_VARIABLE: Final = re.compile(
    r"\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\$\{(?P<kind>\w+):(?P<of>[^}]*)\}|\$\{/\}"
)
_LINE: Final = re.compile(r"""(?:export\s+)?([A-Za-z_]\w*)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^#\n]*?)\s*(?:#.*)?""")
_FOLDERS: Final = (".cursor", ".vscode", ".claude")
"""Folders of a project with files of other programs."""


def replaced(text: str, file: Path) -> str:
    """Return a text with the values of its variables.

    `${NAME}` and `${env:NAME}` are of the environment, with `${NAME:-DEFAULT}` for an unset or empty one.
    `${workspaceFolder}` is the folder of the project with the file, and `${userHome}` the user's.

    Args:
        text: the text.
        file: the file with the text.

    Raises:
        InvalidRequest: a variable is not set, or is another program's.
    """
    return _VARIABLE.sub(lambda match: _value(match, file), text)


def environment_of(path: Path) -> dict[str, str]:
    """Return the variables in a file with a line NAME=VALUE for each.

    Raises:
        InvalidRequest: the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"its envFile {path} cannot be read: {error}") from error
    variables = {}
    for line in lines:
        if match := _LINE.fullmatch(line.strip()):
            value = match[2]
            if value[:1] == '"' == value[-1:] and len(value) > 1:
                value = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], value[1:-1])
            elif value[:1] == "'" == value[-1:] and len(value) > 1:
                value = value[1:-1]
            variables[match[1]] = value
    return variables


def project_of(file: Path) -> Path:
    """Return the folder of the project with a file of servers."""
    folder = file.absolute().parent
    return folder.parent if folder.name in _FOLDERS else folder


def _value(match: re.Match[str], file: Path) -> str:
    kind, name, default = match["kind"], match["name"], match["default"]
    if kind == "env":
        name, separator, rest = match["of"].partition(":-")
        default = rest if separator else None
    elif kind is not None:
        raise InvalidRequest(
            f"needs {match[0]}, which only another program knows: put the value into a variable of the environment, "
            "and write ${env:NAME}"
        )
    places = {
        None: os.sep,
        "workspaceFolder": str(project_of(file)),
        "workspaceFolderBasename": project_of(file).name,
        "userHome": os.path.expanduser("~"),
        "pathSeparator": os.sep,
    }
    if name in places and kind is None:
        return places[name]
    value = os.environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise InvalidRequest(f"needs the variable {name} of the environment, which is not set")
    return value
