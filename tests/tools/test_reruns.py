"""A failed test is run once more; a run that lost its workers before all of its tests is not forgiven."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = """
from tests.reruns import Reruns

def pytest_addoption(parser):
    parser.addoption("--rerun-failed", type=int, default=3)

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reruns(config.getoption("--rerun-failed")))
"""
TESTS = """
import os
from pathlib import Path

def test_first():
    if not Path("again").exists():
        Path("again").touch()
        {ending}

def test_second():
    pass
"""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("ending", "status", "output"),
    [("assert False", 0, "FLAKY"), ("os._exit(3)", 1, "tests without a result: 1")],
)
def test_a_failure_is_forgiven_if_all_tests_ran(tmp_path: Path, ending: str, status: int, output: str) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "test_some.py").write_text(TESTS.format(ending=ending), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "--max-worker-restart", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, output in done.stdout) == (status, True), done.stdout
