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
from tests.browser.driver import SIZE, complaints_of
from tests.browser.test_accessible import CUT, violations
from tests.notebook.conftest import SETTINGS
from tests.notebook.kernels import environment
from tests.waiting import PATIENCE, until_blocking

OUTPUTS = ".output-area"
# Its footer is too pale for axe on narrow pages, with no option against it.
TABLE = "marimo-table"
COMMAND = (sys.executable, "-m", "marimo", "edit", "--headless", "--no-token", "--skip-update-check")
GROWS = "await session.show(token_ids=[5, 6, 7], max_tokens=60000, ignore_eos=True)"
STAYS = "handle = session.submit(token_ids=[5, 6, 7], max_tokens=60000, ignore_eos=True); handle.display()"
SHORT = "await session.generate(token_ids=[5, 6, 7], max_tokens=12, logprobs=3)"
BATCH = "await session.show(token_ids=[[5, 6, 7], [8, 9]], max_tokens=20)"
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
HEAD = "# /// script\n# [tool.marimo.display]\n# theme = 'system'\n# ///\n\n"
DASHBOARD = "session.dashboard()"
EXPLORED = f"answer = {SHORT}\nexplorer = session.explore(answer)\nexplorer"
MAP = "await session.map([{'n': f'{n}'} for n in range(60)], template='w{n}', max_tokens=3)"
CHAT = "chat = session.chat(max_tokens=60000, ignore_eos=True)\nchat.widget()"
SUBMITTED = "handle = session.submit(token_ids=[5, 6, 7], max_tokens=60000, ignore_eos=True)"
LONG = "max_tokens=60000, ignore_eos=True"
CALLS = {
    "generate": f"await session.generate(token_ids=[5, 6, 7], {LONG})",
    "generate_sync": f"session.generate_sync(token_ids=[5, 6, 7], {LONG})",
    "map": f"await session.map([{{'n': 'w5'}}, {{'n': 'w6'}}], template='{{n}}', {LONG})",
    "shows": f"import asyncio\nawait asyncio.gather(*(session.show(token_ids=[5, each], {LONG}) for each in (6, 7)))",
}
"""Cells that wait for a minute of tokens, by the call."""
COUNT = "f'{len(session.requests)} unfinished'"
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

    def use_theme(self, *, dark: bool) -> None:
        """Switch to the light or the dark theme, by the preference that the browser reports."""
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        expect(self.page.locator("body")).to_have_class(re.compile("dark" if dark else "light"))

    def look(self, name: str) -> None:
        """Write screenshots of both themes, wide and narrow; nothing is cut, and axe finds nothing in the outputs."""
        for dark in (False, True):
            self.use_theme(dark=dark)
            for width in (1400, 500):
                self.page.set_viewport_size({"width": width, "height": 900})
                path = SCREENSHOTS / f"marimo_{name}_{'dark' if dark else 'light'}_{width}.png"
                self.page.screenshot(path=path, full_page=True)
                assert self.page.locator(OUTPUTS).evaluate_all(CUT) == []
            assert violations(self.page, OUTPUTS, foreign=(TABLE,)) == []
        self.page.set_viewport_size(SIZE)

    def run(self, place: int) -> Locator:
        """Start a cell, and return its output."""
        self.cell(place).locator(".cm-content").first.press("Control+Enter")
        return self.output(place)

    def end(self, place: int) -> None:
        """Wait for the end of a cell."""
        expect(self.cell(place).locator("[data-status=queued], [data-status=running]")).to_have_count(0)

    def interrupt(self) -> None:
        """Interrupt the running cell, once the button is yellow: marimo ignores clicks in a run's first 0.2 s."""
        button = self.page.get_by_test_id("interrupt-button")
        expect(button).not_to_have_class(re.compile("inactive"))
        button.click()


def source(cells: tuple[str, ...]) -> str:
    """Return the file of a notebook; cells share the names `rekindle` and `session`."""
    bodies = [f"@app.cell\nasync def _(session):\n{indent(cell, '    ')}\n    return\n" for cell in cells]
    return HEAD + "import marimo\n\napp = marimo.App()\n\n\n" + "\n\n".join(bodies)


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
    settings = {**SETTINGS, "chat_template": TEMPLATE}
    opening = f"import rekindle\nsession = await rekindle.open({str(tiny_model)!r}, **{settings})"
    first = f"@app.cell\nasync def _():\n{indent(opening, '    ')}\n    return rekindle, session\n"
    text = source(request.param)
    file.write_text(text.replace("app = marimo.App()\n", f"app = marimo.App()\n\n\n{first}", 1))
    variables = {**environment(tmp_path / "ipython"), "REKINDLE_CACHE": str(cache)}
    with server(file, variables) as address:
        page = context.new_page()
        notebook = Notebook(page)
        page.goto(address)
        try:
            expect(notebook.run(0)).to_contain_text("opening the model")
            notebook.end(0)
            yield notebook
        finally:
            page.screenshot(path=SCREENSHOTS / f"{request.node.originalname}.png", full_page=True)
            page.close()


@pytest.mark.parametrize("notebook", [(GROWS, COUNT)], indirect=True, ids=["cells"])
def test_text_grows_while_its_cell_runs_and_the_stop_button_cancels_it(notebook: Notebook) -> None:
    output = notebook.run(1)
    expect(output).to_contain_text(TOKENS)
    before = output.inner_text()
    expect(output).not_to_have_text(before)
    notebook.interrupt()
    expect(output).to_contain_text("This cell was interrupted")
    expect(notebook.run(2)).to_contain_text("0 unfinished")


@pytest.mark.parametrize("notebook", [(*CALLS.values(), COUNT)], indirect=True, ids=["cells"])
def test_the_stop_button_cancels_what_any_call_waits_for(notebook: Notebook) -> None:
    for place, call in enumerate(CALLS, 1):
        output = notebook.run(place)
        if call == "shows":
            expect(output.get_by_text(TOKENS)).to_have_count(2)
        notebook.interrupt()
        expect(output).to_contain_text("This cell was interrupted")
        notebook.end(place)
        expect(notebook.run(len(CALLS) + 1)).to_contain_text("0 unfinished")


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


@pytest.mark.parametrize("notebook", [(DASHBOARD, SUBMITTED, "session.paused")], indirect=True, ids=["cells"])
def test_a_dashboard_moves_between_cells_and_its_buttons_act(notebook: Notebook) -> None:
    dashboard = notebook.run(1)
    expect(dashboard).to_contain_text("Dashboard")
    notebook.run(2)
    dashboard.get_by_role("button", name=re.compile(r"^Cancel \d+$")).wait_for()
    before = dashboard.inner_text()
    expect(dashboard).not_to_have_text(before)
    notebook.look("dashboard")
    dashboard.get_by_role("button", name="Pause").click()
    expect(dashboard).to_contain_text("paused")
    expect(notebook.run(3)).to_contain_text("True")
    dashboard.get_by_role("button", name="Resume").click()
    dashboard.get_by_role("button", name=re.compile(r"^Cancel \d+$")).click()
    expect(dashboard.get_by_role("button", name=re.compile("^Cancel"))).to_have_count(0)
    notebook.run(1)
    expect(dashboard.get_by_role("button", name="Pause")).to_have_count(1)


@pytest.mark.parametrize("notebook", [(EXPLORED,)], indirect=True, ids=["cells"])
def test_a_choice_in_an_explorer_grows_a_branch(notebook: Notebook) -> None:
    explorer = notebook.run(1)
    tokens = explorer.get_by_role("button")
    expect(tokens).to_have_count(12)
    expect(explorer).to_contain_text("choose a token")
    tokens.nth(4).press("Enter")
    expect(explorer).to_contain_text("place 4, instead of")
    expect(tokens.nth(4)).to_be_focused()
    explorer.get_by_role("button", name=re.compile(r"%$")).first.click()
    expect(explorer).to_contain_text("12 tokens, the first 5 set before")
    notebook.look("explorer")


@pytest.mark.parametrize("notebook", [(CHAT, "[each['role'] for each in chat.messages]")], indirect=True, ids=["cells"])
def test_a_chat_streams_below_its_cell_and_stop_ends_an_answer(notebook: Notebook) -> None:
    output = notebook.run(1)
    box = output.get_by_label("You")
    box.fill("w3 w4")
    box.press("Enter")
    expect(output).to_contain_text(TOKENS)
    expect(box).to_have_value("")
    box.fill("too early")
    output.get_by_role("button", name="Stop").click()
    expect(output).to_contain_text("from the cache")
    expect(output.get_by_role("button", name="Send")).to_be_enabled()
    expect(box).to_have_value("too early")
    for name in ("Continue", "Retry"):
        expect(output.get_by_role("button", name=name)).to_have_count(1)
    expect(notebook.run(2)).to_contain_text("assistant")
    notebook.look("chat")


@pytest.mark.parametrize("notebook", [(MAP,)], indirect=True, ids=["cells"])
def test_a_map_is_a_table_of_all_rows(notebook: Notebook) -> None:
    table = notebook.run(1)
    expect(table.get_by_role("columnheader", name="finish_reason")).to_be_visible()
    expect(table).to_contain_text("60 rows")
    notebook.look("map")
