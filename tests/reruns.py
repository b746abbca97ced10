"""Runs failed tests once more, each alone: a pytest plugin.

A test that passes then is FLAKY: it fails no run, but is named at the end, with its seconds, and in build/flaky.txt. A
run that ended before all of its tests is not forgiven.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

KEPT: Final = Path("build/flaky.txt")
"""The list of all flaky tests in this checkout, below the root directory of the tests."""


@dataclass(eq=False)  # pluggy hashes plugins
class Reruns:
    """Runs failed tests once more at the end of a session, in a process for each.

    Attributes:
        most: how many; if more failed, none is run again.
        failed: the seconds of each failed test, by its id.
        flaky: a line about each flaky test.
        waiting: the ids of the tests without a result.
    """

    most: int
    failed: dict[str, float] = field(default_factory=dict)
    flaky: list[str] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests of this process."""
        self.waiting.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note the tests of a worker, which has all of them."""
        self.waiting.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the result of a test, and if it failed, also in its set-up or its end."""
        self.waiting.discard(report.nodeid)
        if report.failed:
            self.failed[report.nodeid] = self.failed.get(report.nodeid, 0.0) + report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Run the failed tests again, and let the session pass if each of them does."""
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self.failed) <= self.most:
            return
        if self.waiting:
            print(f"\nThe run is not forgiven: tests without a result: {len(self.waiting)}", flush=True)  # noqa: T201
            return
        for test, seconds in self.failed.items():
            began = time.monotonic()
            if _passes(session.config, test):
                again = time.monotonic() - began
                self.flaky.append(f"{test} failed after {seconds:.1f} s, and passed alone in {again:.1f} s")
        if len(self.flaky) == len(self.failed):
            session.exitstatus = pytest.ExitCode.OK
        if self.flaky:
            path = session.config.rootpath / KEPT
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{time.strftime('%Y-%m-%d %H:%M')} {line}\n" for line in self.flaky)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the flaky tests."""
        if self.flaky:
            terminalreporter.section("FLAKY tests, which this run forgives")
            for line in self.flaky:
                terminalreporter.write_line(f"FLAKY {line}", yellow=True)


def _passes(config: pytest.Config, test: str) -> bool:
    """Return True if a test passes alone, in a process of its own; print its output."""
    warnings = [f"-W{one}" for one in config.option.pythonwarnings or []]
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:xdist", "-p", "no:cacheprovider", *warnings]
    print(f"\n{test} failed; once more, alone:", flush=True)  # noqa: T201
    # No marks: the test was chosen already.
    return subprocess.run([*command, "-m", "", "--rerun-failed=0", test], cwd=config.rootpath).returncode == 0
