"""A change calls for the tiers whose inputs it touches, until they passed, and for one more in turn."""

import json
import subprocess
from pathlib import Path

import pytest

from tests import tiers

FILES = {
    "toolkit/rekindle/core/scheduler/planner.py": "plan = 1\n",
    "toolkit/rekindle/server/writing.py": "write = 1\n",
    "README.md": "words\n",
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository of one commit in which every tier has passed."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    git("init", "--quiet")
    commit()
    note_all()
    return tmp_path


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", "change")


def note_all() -> None:
    Path("tests").mkdir(exist_ok=True)
    Path("tests/passed.json").write_text(json.dumps({tier: tiers.digest(tier) for tier in tiers.TIERS}))


def run(tier: str) -> None:
    tiers.begins(tier)
    tiers.passes(tier)


def test_one_tier_is_called_in_turn_where_all_passed() -> None:
    turns = []
    for _ in tiers.TIERS:
        turns += tiers.due()
        commit()
    assert sorted(turns) == sorted(tiers.TIERS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("toolkit/rekindle/core/scheduler/planner.py", {"test-engine", "test-unit"}),
        ("toolkit/rekindle/server/writing.py", {"test-clients", "test-unit"}),
        ("README.md", {"docs", "tutorials"}),
    ],
)
def test_a_change_calls_for_what_it_touches_until_that_passed(name: str, expected: set[str]) -> None:
    (in_turn,) = tiers.due()
    Path(name).write_text("changed\n")
    assert set(tiers.due()) == expected | {in_turn}
    for tier in expected:
        run(tier)
    assert tiers.due() == [in_turn]
    Path(name).write_text(FILES[name])
    assert set(tiers.due()) == expected | {in_turn}, "what passed before is not what passed last"


def test_new_moved_and_deleted_files_are_changes() -> None:
    before = tiers.digest("test-engine")
    Path("toolkit/rekindle/core/scheduler/planner.py").rename("toolkit/rekindle/core/scheduler/plans.py")
    moved = tiers.digest("test-engine")
    Path("toolkit/rekindle/core/scheduler/plans.py").unlink()
    assert len({before, moved, tiers.digest("test-engine")}) == 3


def test_inputs_that_change_during_a_run_have_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    tiers.begins("test-engine")
    Path("toolkit/rekindle/core/scheduler/planner.py").write_text("plan = 2\n")
    tiers.passes("test-engine")
    assert "changed while it ran" in capsys.readouterr().out
    assert "test-engine" in tiers.due()


def test_what_runs_every_test_calls_for_every_tier() -> None:
    Path("tests/conftest.py").write_text("changed\n")
    assert tiers.due() == list(tiers.TIERS)


def test_every_tier_is_a_target_with_inputs_that_exist() -> None:
    command = ["make", "--dry-run", *tiers.TIERS]
    recipes = subprocess.run(command, cwd=tiers.ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for tier, inputs in tiers.TIERS.items():
        begin, end = (f"tests/tiers.py {verb} {tier}" for verb in ("begins", "passed"))
        assert [line.partition(" ")[2] for line in recipes if line.endswith((begin, end))] == [begin, end]
        assert [name for name in (*tiers.SHARED, *inputs) if not (tiers.ROOT / name).exists()] == []
