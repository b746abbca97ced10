"""One call can be followed: bounds on what `generate` and a streamed chat run. A step that simplifies lowers them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
BOUNDS = {
    "generate": {"functions": 408, "files": 82, "lines": 1640},
    "chat": {"functions": 604, "files": 122, "lines": 2450},
}
"""Without the device programs, which a fake device stands for. Timing moves a few lines: 2 % are left for that."""
MODULES = 353
"""Our modules loaded by the end of `generate`, without those of `rekindle.testing`."""


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


def test_imports_load_no_more_than_before(counts: dict[str, Any]) -> None:
    assert 0.9 * MODULES <= counts["modules"] <= MODULES


def test_contributing_walks_the_files_of_a_call_in_their_order(counts: dict[str, Any]) -> None:
    """Steps on the device are files alone here, since a fake device stands for them."""
    chapter = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### One request")[2].partition("##")[0]
    walk = re.findall(r"`([\w/]+/\w+\.py)`", chapter)
    assert 12 <= len(walk) <= 15
    assert all((ROOT / "toolkit/rekindle" / name).is_file() or (ROOT / "kernels" / name).is_file() for name in walk)
    on_device = [name for name in walk if name not in counts["files"]]
    assert all(
        name.startswith(("core/device/", "core/engine/actors/", "core/models/", "rekindle_kernels/"))
        for name in on_device
    )
    places = [counts["files"].index(name) for name in walk[:-1] if name in counts["files"]]
    assert places == sorted(places)
    assert walk[-1] in counts["files"], "which is made first, and has the answer last"


def test_the_import_alone_loads_neither_jax_nor_a_room() -> None:
    code = "import rekindle, sys; print(*sorted(name for name in sys.modules if name.partition('.')[0] in sys.argv))"
    command = [sys.executable, "-c", code, "jax", "numpy", "rekindle"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE, text=True)
    assert done.stdout.strip() == "rekindle rekindle.namesake"
