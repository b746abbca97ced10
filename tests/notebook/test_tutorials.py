"""The first tutorial runs in cells on trio too; `make tutorials` runs all of them in cells on asyncio."""

from pathlib import Path

import pytest

from tests.notebook import driver
from tests.notebook.driver import open_notebook
from tests.notebook.kernels import COMMAND, CURRENT, environment

pytestmark = [pytest.mark.notebook, pytest.mark.tutorial]

TUTORIALS = Path(__file__).parents[2] / "tutorials"
MARK = "# %%"
OPENING = 300
"""Seconds after which the first cell, which compiles, fails: 30 times what it takes on a machine at rest."""


def code_cells(tutorial: str) -> list[str]:
    """Return the code of each cell, parted as jupytext does it."""
    _, *cells = f"\n{(TUTORIALS / tutorial).read_text(encoding='utf-8')}".split(f"\n{MARK}")
    return [cell.strip() for cell in cells if not cell.startswith(" [markdown]")]


@pytest.mark.usefixtures("smollm2_path")
def test_the_first_tutorial_runs_on_trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SILENCE", OPENING)
    cells = code_cells("01_first_words.py")
    assert sum("await " in cell for cell in cells) > 10
    with open_notebook(tmp_path / "kernel.log", COMMAND, environment(CURRENT, tmp_path / "ipython")) as notebook:
        notebook.run("%autoawait trio")
        notebook.run("import sniffio\nasync def library(): return sniffio.current_async_library()")
        for cell in cells:
            notebook.run(cell)
        assert notebook.run("print(await library())") == "trio\n"
        assert notebook.said_elsewhere() == ""
