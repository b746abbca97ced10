"""Coding agents in their newest versions, unchanged, run errands in three turns with tools on a scripted session."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.errands import CONTEXT, Errands, serving
from tests.clients.npm import command

LOGS = Path(__file__).parents[2] / "build" / "clients"
ROUNDS = (1, 2, 3)
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
"""Settings against traffic beside that of the server."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a home and a project."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "note.txt").write_text("the note\n", encoding="utf-8")
    return tmp_path


def run(program: str, place: Path, arguments: list[str], **environment: str) -> str:
    """Run a program in the project; add its output to its log, and return it."""
    start = command(program)
    if start is None:
        pytest.skip(f"{program} is not installed: python -m tests.clients.npm")
    variables = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    home = str(place / "home")
    variables |= {
        "HOME": home,
        "XDG_CONFIG_HOME": home,
        "XDG_DATA_HOME": home,
        "XDG_CACHE_HOME": home,
        **QUIET,
        **environment,
    }
    done = subprocess.run(
        [*start, *arguments],
        cwd=place / "project",
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{program}.log").open("a", encoding="utf-8") as log:
        log.write(f"$ {program} {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def fresh_log(program: str) -> None:
    (LOGS / f"{program}.log").unlink(missing_ok=True)


def test_codex(place: Path) -> None:
    shell, agent = "exec_command", "multi_agent_v1__close_agent"
    errands = Errands(
        calls=[
            [(shell, {"cmd": "cat note.txt"}), ("get_goal", {})],
            [(agent, {"target": "nobody"}), (shell, {"cmd": "echo 2"})],
            [(shell, {"cmd": "echo 3"}), ("get_goal", {})],
        ],
        results=[["the note", "goal"], ["nobody", "2"], ["3", "goal"]],
    )
    with serving(errands) as server:
        fresh_log("codex")
        settings = f"""
model = "fake"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{server.url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
"""
        (place / "home" / "config.toml").write_text(settings, encoding="utf-8")
        for n in ROUNDS:
            again = ["resume", "--last"] if n > 1 else []
            arguments = ["exec", *again, "--skip-git-repo-check", "--json", f"ROUND-{n}"]
            output = run("codex", place, arguments, CODEX_HOME=str(place / "home"), LOCAL_KEY="key")
            items = [json.loads(line).get("item", {}) for line in output.splitlines() if line.startswith("{")]
            assert [item["text"] for item in items if item.get("type") == "agent_message"] == [f"DONE-{n}"]
    assert "DONE-1" in errands.prompts[-1]
    assert "DONE-2" in errands.prompts[-1]


def test_claude_code(place: Path) -> None:
    out, note = place / "project" / "out.txt", place / "project" / "note.txt"
    errands = Errands(
        calls=[
            [
                ("Read", {"file_path": str(note)}),
                ("Bash", {"command": f"echo {n} >> out.txt; cat out.txt", "description": "x"}),
            ]
            for n in ROUNDS
        ],
        results=[["the note", "1"], ["", "1\n2"], ["", "1\n2\n3"]],
    )
    with serving(errands) as server:
        fresh_log("claude")
        for n in ROUNDS:
            again = ["--continue"] if n > 1 else []
            arguments = ["-p", *again, "--output-format", "stream-json", "--verbose", "--allowedTools", "Read,Bash"]
            output = run(
                "claude",
                place,
                [*arguments, "--model", "fake", "--", f"ROUND-{n}"],
                ANTHROPIC_BASE_URL=server.url,
                ANTHROPIC_API_KEY="key",
                ANTHROPIC_SMALL_FAST_MODEL="fake",
            )
            last = json.loads(output.splitlines()[-1])
            assert (last["type"], last["is_error"], last["result"]) == ("result", False, f"DONE-{n}")
    assert out.read_text(encoding="utf-8") == "1\n2\n3\n"
    assert "DONE-2" in errands.prompts[-1]


def test_opencode(place: Path) -> None:
    note = place / "project" / "note.txt"
    errands = Errands(
        calls=[
            [
                ("read", {"filePath": str(note)}),
                ("bash", {"command": f"echo {n} >> out.txt; cat out.txt", "description": "x"}),
            ]
            for n in ROUNDS
        ],
        results=[["the note", "1"], ["the note", "1\n2"], ["the note", "1\n2\n3"]],
    )
    with serving(errands) as server:
        fresh_log("opencode")
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "local",
            "options": {"baseURL": f"{server.url}/v1", "apiKey": "key"},
            "models": {"fake": {"name": "fake", "tool_call": True, "limit": {"context": CONTEXT, "output": 1000}}},
        }
        settings = {"provider": {"local": provider}, "model": "local/fake", "permission": "allow", "share": "disabled"}
        (place / "project" / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
        for n in ROUNDS:
            again = ["--continue"] if n > 1 else []
            output = run("opencode", place, ["run", *again, "--model", "local/fake", f"ROUND-{n}"])
            assert f"DONE-{n}" in output
    assert (place / "project" / "out.txt").read_text(encoding="utf-8") == "1\n2\n3\n"
    assert "DONE-2" in errands.prompts[-1]
