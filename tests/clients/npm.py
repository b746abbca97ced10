"""Clients from npm, in their newest versions: `python -m tests.clients.npm` installs them and prints the versions.

They lie in a folder that git ignores, beside a Node.js of the newest version, which comes from npm too.
"""

import json
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / "build" / "npm"
MACHINES: Final = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}
NODE: Final = f"node-{sys.platform}-{MACHINES.get(platform.machine(), platform.machine())}"
AGENTS: Final = ("@openai/codex", "@anthropic-ai/claude-code", "opencode-ai")
SDKS: Final = (
    *("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "@openai/agents", "zod"),
    "ollama-ai-provider-v2",
)
FROM_PYPI: Final = ("openai", "openai-agents", "anthropic", "litellm", "ollama", "pydantic-ai-slim")
PROGRAMS: Final = {
    "codex": "@openai/codex/bin/codex.js",
    "claude": f"@anthropic-ai/claude-code-{NODE.removeprefix('node-')}/claude",
    "opencode": f"opencode-{NODE.removeprefix('node-')}/bin/opencode",
}
"""The file of each program. The last two are binaries, from optional packages: their own packages only choose one."""


def install() -> None:
    """Install the newest versions, without scripts of the packages; those that npm cannot have stay as they are."""
    npm = shutil.which("npm")
    if npm is None:
        print("there is no npm: its clients are left out")  # noqa: T201
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    quiet = ["--no-audit", "--no-fund", "--silent", "--ignore-scripts"]
    for group in ((NODE, *AGENTS), SDKS):
        names = [f"{name}@latest" for name in group]
        if subprocess.run([npm, "install", *quiet, *names], cwd=FOLDER, check=False, timeout=900).returncode:
            print(f"npm cannot install {' '.join(names)}")  # noqa: T201


def versions() -> dict[str, str]:
    """Return the version of each installed client by its name."""
    numbers = {name: version(name) for name in FROM_PYPI}
    for name in (NODE, *AGENTS, *SDKS):
        file = FOLDER / "node_modules" / name / "package.json"
        if file.exists():
            numbers[name] = json.loads(file.read_text(encoding="utf-8"))["version"]
    return numbers


def command(program: str) -> list[str] | None:
    """Return the beginning of a program's command line; None if it is not installed."""
    modules = FOLDER / "node_modules"
    node, file = modules / NODE / "bin" / "node", modules / PROGRAMS[program]
    if not (node.exists() and file.exists()):
        return None
    return [str(node), str(file)] if file.suffix == ".js" else [str(file)]


def node_command(script: Path) -> list[str] | None:
    """Return the beginning of the command line for a script, copied beside the packages; None without Node.js."""
    node = FOLDER / "node_modules" / NODE / "bin" / "node"
    if not node.exists() or any(not (FOLDER / "node_modules" / name).exists() for name in SDKS):
        return None
    return [str(node), str(shutil.copy(script, FOLDER))]


if __name__ == "__main__":
    install()
    print("clients:", ", ".join(f"{name} {number}" for name, number in versions().items()))  # noqa: T201
