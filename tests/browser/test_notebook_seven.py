"""Notebook 7 shows the same live faces as JupyterLab, in both themes, wide and narrow."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.driver import BROKEN, LIMIT, Notebook
from tests.browser.lab import Lab
from tests.browser.test_accessible import CUT, violations

OUTPUTS = ".jp-OutputArea-output"
UNUSED = "[ ]:"
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
CELLS = (
    f"session = await open_tiny(progress=False, chat_template={TEMPLATE!r})",
    "await session.show(token_ids=PROMPT, **LONG)",
    "board = session.dashboard()\nboard",
    "session.explore(await session.generate(token_ids=PROMPT, max_tokens=12, logprobs=3))",
    "chat = session.chat(max_tokens=8, ignore_eos=True)\nchat.widget()",
)


class Page7(Notebook):
    """One notebook in a page of Notebook 7."""

    def ready(self) -> None:
        self.page.locator(".jp-NotebookPanel-toolbar [data-status='idle']").wait_for()

    def run_first(self) -> None:
        """Run the first cell, again if it is lost: the toolbar says idle before there is a kernel."""
        for patience in (*(5_000,) * 12, LIMIT):
            self.cell(0).locator(".cm-content").press("Control+Enter")
            try:
                expect(self.prompt(0)).not_to_have_text(UNUSED, timeout=patience)
            except AssertionError:
                continue
            break
        self.end(0)

    def look(self) -> None:
        """Write screenshots; nothing is cut, and axe finds nothing in the outputs."""
        for dark in (False, True):
            self.use_theme(dark=dark)
            for width in (1400, 500):
                self.page.set_viewport_size({"width": width, "height": 3200})
                name = f"notebook7_{'dark' if dark else 'light'}_{width}.png"
                self.page.screenshot(path=SCREENSHOTS / name)
                assert self.page.locator(OUTPUTS).evaluate_all(CUT) == []
                assert violations(self.page, OUTPUTS) == []


@pytest.fixture
def server(start_lab: Callable[[], AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """Return a server of its own: one server gives JupyterLab the files of Notebook 7 with the same names, as 403."""
    with start_lab() as lab:
        yield lab


def test_faces_live_in_notebook_seven(context: BrowserContext, server: Lab) -> None:
    name = "seven.ipynb"
    server.write(name, CELLS)
    server.start_kernel(name)
    page = context.new_page()
    with closing(page):
        notebook = Page7(page, name)
        page.goto(server.address(name, seven=True))
        notebook.ready()
        notebook.complaints.clear()  # Notebook 7 has one of its own while it starts
        notebook.run_first()
        text = notebook.start(1)
        tokens = notebook.number(1, r"running, ([\d,]+) tokens")
        notebook.number(1, r"running, ([\d,]+) tokens", above=tokens)
        text.get_by_role("button", name="Cancel").click()
        expect(notebook.end(1)).to_contain_text("cancelled")
        board = notebook.run(2)
        expect(board).to_contain_text("Dashboard")
        board.get_by_role("button", name="Pause").click()
        board.get_by_role("button", name="Resume").click()
        explorer = notebook.run(3)
        explorer.get_by_role("button").nth(4).press("Enter")
        expect(explorer).to_contain_text("place 4, instead of")
        chat = notebook.run(4)
        chat.get_by_label("You").fill("w3 w4")
        chat.get_by_label("You").press("Enter")
        expect(chat).to_contain_text("from the cache")
        notebook.look()
        expect(page.get_by_text(BROKEN)).to_have_count(0)
        assert notebook.complaints == []
        server.end_kernels()
