"""The tutorial of the warm restart is warm itself when it runs again on a restarted kernel."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebook import driver
from tests.notebook.driver import Notebook, open_notebook
from tests.notebook.kernels import COMMAND, CURRENT, environment

pytestmark = [pytest.mark.notebook, pytest.mark.tutorial]

TUTORIAL = Path(__file__).parents[2] / "tutorials" / "06_warm_restart.ipynb"
PAGE = 64
OPENING = 300
"""Seconds of silence after which a cell fails: 30 times what compiling takes on a machine at rest."""
TELL = """
print(json.dumps({
    "inner": {name: (run["loaded"], run["compiled"], run["cached"]) for name, run in
              {"cold": cold, "warm": warm, "healed": healed}.items()},
    "loaded": restored.programs,
    "compiled": [restored.compiled, stats.compilations],
    "tokens": answer.token_ids,
    "prompt": answer.usage.prompt_tokens,
    "found": [restored.tokens, answer.cached.disk],
}))
"""


@pytest.fixture
def notebook(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """Start a kernel that finds the downloaded model, and nothing that another test has compiled."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / "models").symlink_to(smollm2_path.parent.resolve())
    monkeypatch.setattr(driver, "SILENCE", OPENING)
    monkeypatch.setenv("REKINDLE_CACHE", str(cache))
    with open_notebook(tmp_path / "kernel.log", COMMAND, environment(CURRENT, tmp_path / "ipython")) as notebook:
        yield notebook


def run_all(notebook: Notebook) -> dict[str, Any]:
    """Run all cells of the tutorial, with their asserts; return what it reports."""
    for cell in json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            notebook.run("".join(cell["source"]))
    told: dict[str, Any] = json.loads(notebook.run(TELL))
    return told


def test_after_a_restart_of_its_kernel_it_compiles_nothing_and_finds_its_prompt(notebook: Notebook) -> None:
    first = run_all(notebook)
    assert (first["loaded"], first["compiled"], first["found"]) == (0, [6, 6], [0, 0])
    notebook.restart()
    again = run_all(notebook)
    assert (again["loaded"], again["compiled"]) == (6, [0, 0])
    assert min(again["found"]) >= again["prompt"] // PAGE * PAGE > 0
    assert again["tokens"] == first["tokens"]
    # The kernels that it starts itself have a new cache in every run, so the first of them is always cold.
    # Which pages a damaged byte costs depends on how many pages were idle together when they were written.
    for name in ("cold", "warm"):
        assert again["inner"][name] == first["inner"][name]
    assert again["inner"]["warm"][:2] == [6, 0]
    assert again["inner"]["healed"][:2] == first["inner"]["healed"][:2] == [5, 1]
    assert notebook.log() == ""
