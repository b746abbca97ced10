"""The tutorial of the warm restart is warm itself when it runs again on a restarted kernel."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebook import driver
from tests.notebook.driver import Notebook, open_notebook
from tests.notebook.kernels import COLAB, CURRENT, command, environment

pytestmark = [pytest.mark.notebook, pytest.mark.tutorial]

TUTORIAL = Path(__file__).parents[2] / "tutorials" / "06_warm_restart.ipynb"
RESTART = "restart"
"""The tag of the cell with the call to restart the kernel and to run the cells above it again."""
PROGRAMS, PAGE = 9, 64
OPENING = 300
"""Seconds of silence until a cell fails: 30 times a compilation on a machine at rest."""
TELL = """
import json
print(json.dumps({
    "loaded": session.restored.programs,
    "compiled": [session.restored.compiled, session.stats.compilations],
    "tokens": answer.token_ids,
    "prompt": answer.usage.prompt_tokens,
    "found": [session.restored.tokens, answer.cached.disk],
}))
"""


@pytest.fixture(params=[CURRENT, pytest.param(COLAB, marks=pytest.mark.older_kernel)])
def notebook(
    smollm2_path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Notebook]:
    """Start a kernel with the downloaded model, and without programs of another test."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / "models").symlink_to(smollm2_path.parent.resolve())
    monkeypatch.setattr(driver, "SILENCE", OPENING)
    monkeypatch.setenv("REKINDLE_CACHE", str(cache))
    # Jupyter starts a notebook in its own folder, where it finds the modules beside it.
    monkeypatch.setenv("PYTHONPATH", str(TUTORIAL.parent), prepend=os.pathsep)
    variables = environment(tmp_path / "ipython")
    with open_notebook(tmp_path / "kernel.log", command(request.param), variables) as notebook:
        yield notebook


def cells_around_restart() -> tuple[list[Any], list[Any]]:
    """Return the code cells to run again after a restart, and the cells below."""
    cells = json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]
    (place,) = (place for place, cell in enumerate(cells) if RESTART in cell["metadata"].get("tags", ()))
    above, below = ([cell for cell in part if cell["cell_type"] == "code"] for part in (cells[:place], cells[place:]))
    return above, below


def run_all(notebook: Notebook, cells: list[Any]) -> dict[str, Any]:
    """Run the cells above the restart; return the report of their session."""
    for cell in cells:
        notebook.run("".join(cell["source"]))
    report: dict[str, Any] = json.loads(notebook.run(TELL))
    return report


def test_what_readers_see_above_the_restart_is_of_a_second_run() -> None:
    texts = [output["data"]["text/plain"] for cell in cells_around_restart()[0] for output in cell["outputs"]]
    opening, answer, restored = ("".join(text) for text in texts)
    assert re.search(r"open after [\d.]+ s \([\d.]+ s cold\)", opening)
    assert re.search(r"cached: \d+ on disk", answer)
    assert f"{PROGRAMS} programs loaded, 0 compiled" in restored


def test_after_a_restart_of_its_kernel_it_compiles_nothing_and_finds_its_prompt(notebook: Notebook) -> None:
    above, below = cells_around_restart()
    first = run_all(notebook, above)
    assert (first["loaded"], first["compiled"], first["found"]) == (0, [PROGRAMS, PROGRAMS], [0, 0])
    notebook.restart()
    again = run_all(notebook, above)
    assert (again["loaded"], again["compiled"]) == (PROGRAMS, [0, 0])
    assert min(again["found"]) >= again["prompt"] // PAGE * PAGE > 0
    assert again["tokens"] == first["tokens"]
    # The kernels that the other cells start have a new cache, so the first of them is cold; the cells assert the rest.
    for cell in below:
        notebook.run("".join(cell["source"]))
    assert f"{PROGRAMS} programs loaded, 0 compiled" in notebook.run("print(warm)")
    assert notebook.log() == ""
