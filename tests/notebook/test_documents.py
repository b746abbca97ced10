"""The cells of the README and of the guides run, one after the other, in a kernel for each document."""

from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, Block, blocks, missing_words, name
from tests.notebook import driver
from tests.notebook.driver import open_notebook
from tests.notebook.kernels import COLAB, CURRENT, command, environment

pytestmark = [pytest.mark.notebook, pytest.mark.tutorial]

OPENING = 300
"""Seconds until a cell fails: 30 times the opening of a model on a machine at rest."""
DEVICES = "--xla_force_host_platform_device_count=4"
"""The guide on devices gets four devices of a CPU."""


def cells(document: Path) -> list[Block]:
    """Return the cells without a reason not to run them here."""
    return [block for block in blocks(document, "python") if not block.reason]


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("smollm2_path")
@pytest.mark.parametrize(
    ("document", "kernel"),
    [
        *(pytest.param(page, CURRENT, id=name(page)) for page in PAGES if cells(page)),
        pytest.param(ROOT / "README.md", COLAB, id="README.md on Colab", marks=pytest.mark.older_kernel),
    ],
)
def test_the_cells_of_a_document_run(
    document: Path, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SILENCE", OPENING)
    variables = dict(environment(tmp_path / "ipython"))
    if "devices" in document.name:
        variables["XLA_FLAGS"] = f"{variables.get('XLA_FLAGS', '')} {DEVICES}".strip()
    with open_notebook(tmp_path / "kernel.log", command(kernel), variables) as notebook:
        notebook.run(f"import os\nos.chdir({str(tmp_path)!r})")
        for block in cells(document):
            cell = notebook.start(block.text).end()
            assert not cell.error, f"{name(document)}:{block.line}: {cell.traceback}"
            assert missing_words(block.text, cell.stdout + cell.shown) == [], f"{name(document)}:{block.line}"
