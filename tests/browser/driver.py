"""A notebook in JupyterLab, driven as a user drives it: by clicks and keys, and by its visible parts."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, Page, ViewportSize, expect

from tests.browser.lab import Lab

LIMIT = 120_000
"""Milliseconds until a wait fails the test: far more than anything here takes."""
SIZE: ViewportSize = {"width": 1100, "height": 1400}
ENDED = re.compile(r"^\[\d+\]:$")
RUNNING = "[*]:"
BROKEN = re.compile("Error displaying widget|Loading widget|Error rendering")
"""The texts of JupyterLab for outputs that it cannot draw."""
NUMBER = """([element, pattern, above]) => {
    const found = element.innerText.match(pattern)
    const number = found ? Number(found[1].replaceAll(",", "")) : -1
    return number > above ? number : false
}"""
"""A script to return the number for `Notebook.number`, or false."""
AT_REST = """
.jp-cell-toolbar, .jp-Collapser, .jp-SideBar { visibility: hidden }
.jp-Cell, .jp-Cell::before { border: none !important; box-shadow: none !important; outline: none !important }
"""
"""The style of pictures. It hides JupyterLab's marks around the selected cell."""
EDGE = 4
"""The width of the strip between the cells and the right edge of their area, in pixels."""
AROUND = 200
"""Pixels above and below the cells: more than JupyterLab needs there."""


def complaints_of(page: Page) -> list[str]:
    """Return a list that takes the errors of the page's console from now on."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


class Notebook:
    """One notebook in one page.

    Attributes:
        page: the page.
        name: the name of its file.
        complaints: the errors of the page's console.
    """

    def __init__(self, page: Page, name: str):
        self.page = page
        self.name = name
        self.complaints = complaints_of(page)

    def cell(self, place: int) -> Locator:
        """Return the cell at this place, counted from 0."""
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(place)

    def output(self, place: int) -> Locator:
        """Return the whole output of a cell, below its code."""
        return self.cell(place).locator(".jp-OutputArea").first

    def prompt(self, place: int) -> Locator:
        """Return the brackets before a cell's code."""
        return self.cell(place).locator(".jp-InputArea-prompt").first

    def ready(self) -> None:
        """Wait until the kernel is idle."""
        # The toolbar's own mark says idle before there is a kernel, and cells that are run then are lost.
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

    def start(self, place: int) -> Locator:
        """Start a cell, and return its output without waiting for the cell's end."""
        before = self.prompt(place).inner_text()
        self.cell(place).locator(".cm-content").press("Control+Enter")
        expect(self.prompt(place)).not_to_have_text(before)
        return self.output(place)

    def end(self, place: int) -> Locator:
        """Wait for the end of a started cell, and return its output."""
        expect(self.prompt(place)).to_have_text(ENDED)
        return self.output(place)

    def run(self, place: int) -> Locator:
        """Run a cell to its end, and return its output."""
        self.start(place)
        return self.end(place)

    def running(self, place: int) -> bool:
        """Return True if a cell was started and has not ended."""
        return bool(self.prompt(place).inner_text().strip() == RUNNING)

    def number(self, place: int, pattern: str, above: int = -1) -> int:
        """Wait until a cell's output has a number that matches the pattern and is larger than `above`.

        Args:
            pattern: a regular expression whose first group is the number, perhaps with commas.
        """
        output = self.output(place).element_handle()
        number = self.page.wait_for_function(NUMBER, arg=[output, pattern, above])
        return int(number.json_value())

    def warnings(self) -> list[str]:
        """Return the outputs of all cells to standard error."""
        outputs = self.page.locator("[data-mime-type='application/vnd.jupyter.stderr']")
        # JupyterLab draws the errors that end cells in the same way.
        warnings: list[str] = outputs.filter(has_not_text="Traceback (most recent call last)").all_inner_texts()
        return warnings

    def interrupt(self) -> None:
        """Press the toolbar's stop button."""
        self.page.locator(".jp-NotebookPanel-toolbar [data-command='notebook:interrupt-kernel']").click()

    def restart(self) -> None:
        """Restart the kernel and clear the outputs, from the menu."""
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.get_by_role("menuitem", name="Restart Kernel and Clear Outputs of All Cells").click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        expect(self.prompt(0)).to_have_text("[ ]:")
        self.ready()

    def clear(self, place: int) -> None:
        """Clear a cell's output, from the menu."""
        self.prompt(place).click()
        self.page.get_by_role("menuitem", name="Edit", exact=True).click()
        self.page.get_by_role("menuitem", name="Clear Cell Output", exact=True).click()

    def use_theme(self, *, dark: bool) -> None:
        """Switch JupyterLab to its light or its dark theme, by the preference that the browser reports."""
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-light", "false" if dark else "true")
        # If its splash screen is shown again while it fades, it is removed twice, and the second time is an error.
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def save(self) -> None:
        """Save the notebook, and wait until the server has it."""
        with self.page.expect_response(lambda reply: reply.request.method == "PUT" and "/api/contents/" in reply.url):
            self.page.locator(".jp-NotebookPanel-toolbar [data-command='docmanager:save']").click()

    def picture(self, path: Path) -> None:
        """Write a screenshot of all cells as PNG."""
        cells = self.page.locator(".jp-WindowedPanel-viewport")
        height = self.page.locator(".jp-WindowedPanel-outer").evaluate("element => element.scrollHeight")
        size = self.page.viewport_size or SIZE
        self.page.set_viewport_size({"width": size["width"], "height": AROUND + height})
        box = cells.bounding_box()
        assert box is not None
        # Right of the cells is the edge of the area for a scroll bar.
        self.page.screenshot(path=path, style=AT_REST, clip={**box, "width": box["width"] - EDGE})
        self.page.set_viewport_size(size)


@contextmanager
def open_notebook(context: BrowserContext, lab: Lab, name: str) -> Iterator[Notebook]:
    """Open a notebook of the server in a page of its own, and wait until its kernel is ready.

    Args:
        name: the name of a file in the server's folder.
    """
    lab.start_kernel(name)
    page = context.new_page()
    with closing(page):
        notebook = Notebook(page, name)
        page.goto(lab.address(name))
        notebook.ready()
        yield notebook
