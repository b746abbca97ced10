"""A script that leaves its session open ends as if it had none: with its own status, and without output."""

import subprocess
import sys
from pathlib import Path

import pytest

from rekindle.core.concurrency.threads import WAITING
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
STATUS = {"by an error": 3}


def ended(situation: str, model: Path) -> tuple[int, str, str]:
    """Run `end_child` in a situation; return its exit status, stdout and stderr."""
    command = [sys.executable, "-m", "tests.engine.end_child", situation, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.wide
@pytest.mark.parametrize(
    "situation",
    [
        "while requests run",
        "at once",
        "after an answer",
        "by an error",
        "closed while requests run",
        "after its loop",
        "while it opens",
    ],
)
def test_a_script_that_leaves_its_session_open_ends_well(situation: str, families: Path) -> None:
    assert ended(situation, families / "llama-tied") == (STATUS.get(situation, 0), "", "")


@pytest.mark.wide
def test_a_script_that_ends_while_the_compiler_runs_waits_for_it_and_says_so(families: Path) -> None:
    assert ended("while it compiles", families / "llama-tied") == (0, "", f"{WAITING}\n")


@pytest.mark.wide
def test_what_comes_too_late_is_an_error_that_says_so_and_requests_are_served(families: Path) -> None:
    status, output, complaints = ended("by another thread", families / "llama-tied")
    assert output.splitlines() == [
        "open: ModelError NoneType",
        "update_weights: ModelError RuntimeError",
        "save: StorageError NoneType",
        "generate: length",
    ]
    assert (status, complaints) == (0, "")
