"""The cells of the README run in marimo, and their exported page shows what they showed, with its faces."""

import re
import subprocess
import sys
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path
from textwrap import indent

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.driver import complaints_of
from tests.browser.test_accessible import CUT, violations
from tests.browser.test_marimo import HEAD, OUTPUTS
from tests.documents import PAGES, blocks
from tests.notebook.kernels import environment

STATIC = Path(str(distribution("marimo").locate_file("marimo/_static")))
"""marimo's front end, which an exported page asks of a CDN."""
CDN = re.compile(r"https://[^/]+/npm/@marimo-team/frontend@[^/]+/dist/([^?]*)")
EXPLORED = "session.explore(await session.generate('The capital of', max_tokens=6, logprobs=3))"
SECONDS = 300
TALL = 6000
"""Pixels for a whole page, which scrolls within itself."""


def write(path: Path, cells: list[str]) -> None:
    bodies = "\n\n".join(f"@app.cell\nasync def _():\n{indent(cell, '    ')}\n    return\n" for cell in cells)
    path.write_text(f"{HEAD}import marimo\n\napp = marimo.App()\n\n\n{bodies}", encoding="utf-8")


def serve(route: Route) -> None:
    """Answer a request for marimo's front end by the installed one."""
    match = CDN.fullmatch(route.request.url)
    assert match is not None
    route.fulfill(path=STATIC / match[1])


@pytest.mark.usefixtures("smollm2_path")
def test_the_cells_of_the_readme_run_and_their_page_has_live_faces_as_they_were(
    context: BrowserContext, tmp_path: Path
) -> None:
    cells = [block.text for block in blocks(PAGES[0], "python") if not block.reason]
    notebook, target = tmp_path / "readme.py", tmp_path / "readme.html"
    write(notebook, [*cells, EXPLORED])
    command = [sys.executable, "-m", "marimo", "-q", "-y", "export", "html", str(notebook), "-o", str(target), "-f"]
    variables = dict(environment(tmp_path / "ipython"))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    page = context.new_page()
    with closing(page):
        complaints = complaints_of(page)
        page.route(CDN, serve)
        page.goto(target.as_uri())
        outputs = page.locator(OUTPUTS)
        for text in ("Generation", "Answers", "Chat", "pages of 64 tokens", "Dashboard", "choose a token"):
            expect(outputs.filter(has_text=text).first).to_be_visible()
        for dark in (False, True):
            page.emulate_media(color_scheme="dark" if dark else "light")
            for width in (1400, 500):
                page.set_viewport_size({"width": width, "height": TALL})
                page.screenshot(path=SCREENSHOTS / f"marimo_page_{'dark' if dark else 'light'}_{width}.png")
                assert outputs.evaluate_all(CUT) == []
            assert violations(page, OUTPUTS) == []
        assert complaints == []
