"""A wrong file of MCP servers is told before a model is opened, and a right one is read as its programs read it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.cli.chat.mcp.config import ServerConfig, read_servers
from rekindle.core.errors import InvalidRequest, StorageError


def write(path: Path, **servers: Any) -> str:
    path.write_text(json.dumps({"globalShortcut": "", "mcpServers": servers}), encoding="utf-8")
    return str(path)


def test_programs_and_addresses_are_read_with_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k1")
    path = write(
        tmp_path / "servers.json",
        files={"command": "npx", "args": ["-y", "pkg"], "env": {"TOKEN": "${KEY}"}, "cwd": "/tmp", "type": "stdio"},
        search={"url": "http://localhost/${env:KEY}", "headers": {"Authorization": "Bearer ${KEY}"}, "type": "http"},
    )
    other = write(tmp_path / "other.json", plain={"command": "run"})
    assert read_servers([path, other]) == [
        ServerConfig("files", ("npx", "-y", "pkg"), {"TOKEN": "k1"}, "/tmp"),
        ServerConfig("search", url="http://localhost/k1", headers={"Authorization": "Bearer k1"}),
        ServerConfig("plain", ("run",)),
    ]
    with pytest.raises(InvalidRequest, match="two MCP servers are called 'plain'"):
        read_servers([other, other])


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "a", "arg": []}, "unknown key 'arg' beside command; did you mean args"),
        ({"command": "a", "headers": {}}, "unknown key 'headers' beside command; known are command, args, env, cwd"),
        ({"command": "a", "url": "b"}, "needs either command"),
        ({"args": []}, "needs either command .* got args"),
        ({"url": "b", "type": "sse"}, "type 'sse' is not supported; with url it is http"),
        ({"command": "a", "args": "b"}, "args must be a list of texts, got 'b'"),
        ({"command": "a", "args": [3]}, "args takes texts, got 3"),
        ({"command": "a", "env": [3]}, "env must be an object of texts"),
        ({"command": ""}, "command is empty"),
        ({"command": "a", "env": {"B": "${NO_SUCH_KEY}"}}, "env needs the variable NO_SUCH_KEY"),
        ([], "expected an object with command or url"),
    ],
)
def test_a_wrong_server_is_told_by_its_name(tmp_path: Path, server: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"servers.json, server 'sky': {words}"):
        read_servers([write(tmp_path / "servers.json", sky=server)])


def test_a_wrong_file_ends_the_command_before_a_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", lambda *model, **options: pytest.fail("a model was opened"))
    path = tmp_path / "servers.json"
    for content, words in (("{", "is no JSON file"), ('{"servers": {}}', "it has servers"), ("[]", "it has []")):
        path.write_text(content, encoding="utf-8")
        assert main(["chat", "fake", "--mcp", str(path)]) == 1
        assert words in " ".join(capsys.readouterr().err.split())
    assert main(["chat", "fake", "--mcp", str(tmp_path / "nowhere.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    with pytest.raises(StorageError):
        read_servers([str(tmp_path)])


def test_a_missing_package_is_told_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", lambda *model, **options: pytest.fail("a model was opened"))
    monkeypatch.setitem(sys.modules, "mcp", None)
    path = write(tmp_path / "servers.json", sky={"command": "a"})
    assert main(["chat", "fake", "--mcp", path, "--yes"]) == 1
    assert "pip install 'rekindle-llm[mcp]'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["chat", "fake", "--mcp", path])
    assert "add --yes" in capsys.readouterr().err
