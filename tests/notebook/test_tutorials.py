"""The first tutorial runs in cells on trio too; `make tutorials` runs all of them in cells on asyncio."""

from pathlib import Path

import pytest

from tests.notebook.driver import open_notebook
from tests.notebook.kernels import COMMAND, CURRENT, environment

pytestmark = pytest.mark.notebook

TUTORIALS = Path(__file__).parents[2] / "tutorials"
MARK = "# %%"


def code_cells(tutorial: str) -> list[str]:
    """The code of each cell, as jupytext parts them."""
    _, *cells = f"\n{(TUTORIALS / tutorial).read_text(encoding='utf-8')}".split(f"\n{MARK}")
    return [cell.strip() for cell in cells if not cell.startswith(" [markdown]")]


def test_the_first_tutorial_runs_on_trio(smollm2_path: Path, tmp_path: Path) -> None:
    cells = code_cells("01_first_words.py")
    assert sum("await " in cell for cell in cells) > 10
    with open_notebook(tmp_path / "kernel.log", COMMAND, environment(CURRENT, tmp_path / "ipython")) as notebook:
        notebook.run("%autoawait trio")
        notebook.run("import sniffio\nasync def library(): return sniffio.current_async_library()")
        for cell in cells:
            notebook.run(cell)
        assert notebook.run("print(await library())") == "trio\n"
        assert notebook.said_elsewhere() == ""
