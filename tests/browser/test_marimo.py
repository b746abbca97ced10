"""Notebooks of marimo show answers as they come, keep a session when its cell runs again, and chat with it."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.driver import complaints_of
from tests.notebook.conftest import SETTINGS
from tests.notebook.kernels import CURRENT, environment
from tests.waiting import PATIENCE, until_blocking

COMMAND = (sys.executable, "-m", "marimo", "edit", "--headless", "--no-token", "--skip-update-check")
GROWS = "await session.show(token_ids=[5, 6, 7], max_tokens=60000, ignore_eos=True)"
STAYS = "handle = session.submit(token_ids=[5, 6, 7], max_tokens=60000, ignore_eos=True); handle.display()"
SHORT = "await session.generate(token_ids=[5, 6, 7], max_tokens=12, logprobs=3)"
BATCH = "await session.show(token_ids=[[5, 6, 7], [8, 9]], max_tokens=20)"
TOKENS = re.compile(r"running, [\d,]+ tokens")


class Notebook:
    """One notebook in one page."""

    def __init__(self, page: Page):
        self.page = page
        self.complaints = complaints_of(page)

    def cell(self, place: int) -> Locator:
        """Return the cell at this place, counted from 0."""
        return self.page.locator("[data-cell-id]").nth(place)

    def output(self, place: int) -> Locator:
        """Return the output of a cell."""
        return self.cell(place).locator(".output-area")

    def run(self, place: int) -> Locator:
        """Start a cell, and return its output."""
        self.cell(place).locator(".cm-content").first.press("Control+Enter")
        return self.output(place)

    def interrupt(self) -> None:
        """Interrupt the running cell."""
        self.page.get_by_test_id("interrupt-button").click()


def source(cells: tuple[str, ...]) -> str:
    """Return the file of a notebook; cells share the names `rekindle` and `session`."""
    bodies = [f"@app.cell\nasync def _(session):\n{indent(cell, '    ')}\n    return\n" for cell in cells]
    return "import marimo\n\napp = marimo.App()\n\n\n" + "\n\n".join(bodies)


@contextmanager
def server(file: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Serve a notebook for editing, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = file.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port), str(file)], env=variables, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            until_blocking(lambda: "URL" in log.read_text(), "the server listens")
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def notebook(
    context: BrowserContext,
    shared_caches: dict[str, Path],
    tiny_model: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Notebook]:
    """Open a notebook with a session of the tiny model in its first cell, then the cells of the test."""
    cache, file = tmp_path / "cache", tmp_path / "notebook.py"
    cache.mkdir(mode=0o700)
    for name, path in shared_caches.items():
        (cache / name).symlink_to(path)
    opening = f"import rekindle\nsession = await rekindle.open({str(tiny_model)!r}, **{SETTINGS})"
    first = f"@app.cell\nasync def _():\n{indent(opening, '    ')}\n    return rekindle, session\n"
    text = source(request.param)
    file.write_text(text.replace("app = marimo.App()\n", f"app = marimo.App()\n\n\n{first}", 1))
    variables = {**environment(CURRENT, tmp_path / "ipython"), "REKINDLE_CACHE": str(cache)}
    with server(file, variables) as address:
        page = context.new_page()
        notebook = Notebook(page)
        page.goto(address)
        try:
            expect(notebook.run(0)).to_contain_text("opening the model")
            expect(notebook.cell(0)).not_to_have_class(re.compile("running"))
            yield notebook
        finally:
            page.screenshot(path=SCREENSHOTS / f"{request.node.originalname}.png", full_page=True)
            page.close()


@pytest.mark.parametrize("notebook", [(GROWS, "f'{len(session.requests)} unfinished'")], indirect=True, ids=["cells"])
def test_text_grows_while_its_cell_runs_and_the_stop_button_cancels_it(notebook: Notebook) -> None:
    output = notebook.run(1)
    expect(output).to_contain_text(TOKENS)
    before = output.inner_text()
    expect(output).not_to_have_text(before)
    notebook.interrupt()
    expect(output).to_contain_text("This cell was interrupted")
    expect(notebook.run(2)).to_contain_text("0 unfinished")


@pytest.mark.parametrize("notebook", [(STAYS, "handle.cancel()")], indirect=True, ids=["cells"])
def test_text_grows_after_its_cell_and_a_cell_that_runs_again_has_its_session(notebook: Notebook) -> None:
    output = notebook.run(1)
    expect(output).to_contain_text(TOKENS)
    before = output.inner_text()
    expect(output).not_to_have_text(before)
    expect(notebook.run(0)).to_contain_text("the session of this cell's earlier run")


@pytest.mark.parametrize("notebook", [(BATCH, SHORT)], indirect=True, ids=["cells"])
def test_a_batch_is_a_table_and_numbers_are_in_a_card(notebook: Notebook) -> None:
    expect(notebook.run(1)).to_contain_text("Answers")
    expect(notebook.run(2)).to_contain_text("numbers of the tokens")
