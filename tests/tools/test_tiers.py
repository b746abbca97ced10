"""A change calls for the tiers of the inputs it touches, until they pass, and for one more in turn.

A check runs the tiers with enough time to end, and leaves the others to the next check.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import tiers

FILES = {
    "toolkit/rekindle/core/scheduler/planner.py": "plan = 1\n",
    "toolkit/rekindle/server/writing.py": "write = 1\n",
    "README.md": "words\n",
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository of one commit, with a pass of every tier."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEEP", raising=False)
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
    Path("tests/passed.json").write_text(json.dumps({tier: {"digest": tiers.digest(tier)} for tier in tiers.TIERS}))


def run(target: str, seconds: float = 0.0) -> None:
    tiers.begins(target)
    start_file = tiers.BEGUN / target
    os.utime(start_file, (0.0, start_file.stat().st_mtime - seconds))
    tiers.passes(target)


def targets(failing: str = "") -> None:
    """Write a Makefile whose tiers list themselves in ran.txt, and have all passed."""
    recipes = (f"{tier}:\n\t@echo {tier} >> ran.txt; test {tier} != '{failing}'\n" for tier in tiers.TIERS)
    Path("Makefile").write_text("".join(recipes))
    note_all()


def ran() -> list[str]:
    return Path("ran.txt").read_text().split() if Path("ran.txt").exists() else []


def note(tier: str) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(tiers.PASSED.read_text())[tier]
    return noted


def test_one_tier_is_called_in_turn_where_all_passed() -> None:
    turns = []
    for _ in tiers.TIERS:
        turns += tiers.due_tiers()
        commit()
    assert sorted(turns) == sorted(tiers.TIERS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("toolkit/rekindle/core/scheduler/planner.py", {"test-engine", "test-images", "test-unit"}),
        ("toolkit/rekindle/server/writing.py", {"test-clients", "test-unit"}),
        ("README.md", {"docs", "tutorials"}),
    ],
)
def test_a_change_calls_for_what_it_touches_until_that_passed(name: str, expected: set[str]) -> None:
    (in_turn,) = tiers.due_tiers()
    Path(name).write_text("changed\n")
    assert set(tiers.due_tiers()) == expected | {in_turn}
    for tier in expected:
        run(tier)
    assert tiers.due_tiers() == [in_turn]
    Path(name).write_text(FILES[name])
    assert set(tiers.due_tiers()) == expected | {in_turn}, "what passed before is not what passed last"


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
    assert "test-engine" in tiers.due_tiers()


def test_what_runs_every_test_calls_for_every_tier() -> None:
    Path("tests/conftest.py").write_text("changed\n")
    assert set(tiers.due_tiers()) == set(tiers.TIERS)


def test_every_tier_is_a_target_with_inputs_that_exist() -> None:
    command = ["make", "--dry-run", *tiers.TIERS]
    recipes = subprocess.run(command, cwd=tiers.ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for tier, inputs in tiers.TIERS.items():
        begin, end = (f"tests/tiers.py {verb} {tier}" for verb in ("begins", "passed"))
        assert [line.partition(" ")[2] for line in recipes if line.endswith((begin, end))] == [begin, end]
        assert [name for name in (*tiers.SHARED, *inputs) if not (tiers.ROOT / name).exists()] == []


def test_seconds_of_a_tier_are_those_of_its_last_pass_by_the_speed_of_make_test() -> None:
    run("test", 400)
    run("test-mesh", 200)
    assert tiers.expected_seconds("test-mesh") == pytest.approx(200, abs=2)
    run("test", 1200)
    assert tiers.expected_seconds("test-mesh") == pytest.approx(600, abs=6), "this machine is three times as slow"
    run("test-mesh", 900)
    assert tiers.expected_seconds("test-mesh") == pytest.approx(900, abs=9)


def test_seconds_are_noted_only_beside_those_of_make_test() -> None:
    run("test-mesh", 200)
    assert set(note("test-mesh")) == {"digest"}
    assert tiers.expected_seconds("test-mesh") == tiers.ASSUMED_SECONDS


def test_a_deep_run_leaves_the_seconds_of_the_reduced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run("test", 400)
    run("test-mesh", 200)
    monkeypatch.setenv("DEEP", "1")
    run("test", 40_000)
    run("test-mesh", 20_000)
    assert tiers.expected_seconds("test-mesh") == pytest.approx(200, abs=2)


def test_environments_that_are_not_there_take_time() -> None:
    Path("Makefile").write_text("test-mesh: .venv/.dev\n.venv/.dev:\n\t.ci/environment .venv\n")
    assert tiers.expected_seconds("test-mesh") == tiers.ASSUMED_SECONDS + tiers.SET_UP


def test_a_check_leaves_what_would_end_too_late_and_begins_with_it_next_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets()
    Path("README.md").write_text("changed\n")
    (in_turn,) = set(tiers.due_tiers()) - {"docs", "tutorials"}
    digests = json.loads(tiers.PASSED.read_text())
    for tier, seconds in {"tutorials": 900, "docs": 100, in_turn: 200}.items():
        digests[tier] |= {"seconds": seconds, "seconds_of_test": tiers.TYPICAL_TEST}
    tiers.PASSED.write_text(json.dumps(digests))
    assert tiers.run(tiers.MINUTES * 60 - 600) == 0
    assert set(ran()) == {"docs", in_turn}, "shorter ones still fit"
    assert "tutorials: about 15 min" in capsys.readouterr().out.partition("LEFT")[2]
    assert tiers.due_tiers()[0] == "tutorials"
    Path("README.md").write_text(FILES["README.md"])
    assert tiers.due_tiers()[0] == "tutorials", "a tier that was left is due until it passes"
    run("tutorials", 900)
    assert "tutorials" not in tiers.due_tiers()[:1]


def test_a_check_ends_with_the_tier_that_fails() -> None:
    targets(failing := tiers.due_tiers()[0])
    assert tiers.run(0.0) != 0
    assert ran() == [failing]
    assert tiers.run(tiers.MINUTES * 60) == 0, "it has no time for that"


def test_notes_without_seconds_are_those_of_before() -> None:
    tiers.PASSED.write_text(json.dumps({tier: tiers.digest(tier) for tier in tiers.TIERS}))
    assert len(tiers.due_tiers()) == 1
    run("test-mesh")
    assert note("test-mesh")["digest"] == tiers.digest("test-mesh")
