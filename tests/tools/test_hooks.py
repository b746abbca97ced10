"""The hooks of pre-commit are the linters of `make lint`."""

import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_each_linter_is_a_hook_and_each_hook_a_linter() -> None:
    recipe = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    linters = {_command(line) for line in recipe.splitlines() if line.startswith(".venv/bin/")}
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {_command(hook["entry"]) for hook in local["hooks"]} == linters
    assert len(linters) == 6


def _command(line: str) -> str:
    """Return the program and its command, without options and paths."""
    return " ".join(word for word in line.split()[:2] if not word.startswith("-"))
