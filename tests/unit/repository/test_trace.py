"""One call can be followed: bounds on what `generate` and a streamed chat run. A step that simplifies lowers them."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.waiting import PATIENCE

BOUNDS = {
    "generate": {"functions": 402, "files": 87, "lines": 1640},
    "chat": {"functions": 600, "files": 129, "lines": 2440},
}
"""Without the device programs, which a fake device stands for. Timing moves a few lines: 2 % are left for that."""
MODULES = 769
"""Our modules loaded by `import rekindle`, with those of `rekindle.testing`."""


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    child = [sys.executable, "-m", "tests.unit.repository.main_path"]
    done = subprocess.run(child, capture_output=True, check=True, timeout=PATIENCE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("phase", "name"), [(phase, name) for phase, bounds in BOUNDS.items() for name in bounds])
def test_a_call_runs_no_more_than_before(phase: str, name: str, counts: dict[str, Any]) -> None:
    assert 0.9 * BOUNDS[phase][name] <= counts[phase][name] <= 1.02 * BOUNDS[phase][name], (
        f"{phase} runs {counts[phase][name]} {name}: if a step lowered it, lower the bound"
    )


def test_an_import_loads_no_more_than_before(counts: dict[str, Any]) -> None:
    assert 0.9 * MODULES <= counts["modules"] <= MODULES
