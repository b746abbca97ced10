"""JupyterLab of a fresh environment, in headless Chromium, with a screenshot of each cell."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from playwright.sync_api import ViewportSize, expect

from tests.browser.chromium import open_browser
from tests.browser.driver import ENDED, Notebook, open_notebook
from tests.browser.lab import open_lab
from tests.first_minutes.step import PATIENCE_S, Run

SIZE: ViewportSize = {"width": 1000, "height": 1200}
OBSERVE = """([element]) => {
    window.gap = 0; window.last = performance.now()
    window.heard = () => {
        const now = performance.now()
        window.gap = Math.max(window.gap, now - window.last)
        window.last = now
    }
    window.observer?.disconnect()
    window.observer = new MutationObserver(window.heard)
    window.observer.observe(element, {childList: true, subtree: true, characterData: true, attributes: true})
}"""
"""A script for the longest time without a change of a cell's outputs."""
SILENCE = "() => { window.heard(); window.observer.disconnect(); return window.gap / 1000 }"


def cells(
    python: Path, home: Path, variables: Mapping[str, str], codes: Sequence[str], pictures: Path
) -> Iterator[tuple[int, Run]]:
    """Run cells in JupyterLab, and yield the place and the step of each. The first one is the start, at -1."""
    expect.set_options(timeout=1e3 * PATIENCE_S)
    home.mkdir()
    pictures.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with (
        open_lab(home, variables, python=python) as lab,
        open_browser() as browser,
        browser.new_context(viewport=SIZE) as context,
    ):
        context.set_default_timeout(1e3 * PATIENCE_S)
        lab.write("readme.ipynb", codes)
        with open_notebook(context, lab, "readme.ipynb") as notebook:
            yield -1, Run(time.monotonic() - start, 0.0, 0, "")
            for place in range(len(codes)):
                yield place, _cell(notebook, place)
                notebook.cell(place).screenshot(path=pictures / f"{place:02}.png")
            notebook.picture(pictures / "all.png")
        lab.end_kernels()


def _cell(notebook: Notebook, place: int) -> Run:
    area = notebook.cell(place).locator(".jp-OutputArea").first.element_handle()
    start = time.monotonic()
    notebook.page.evaluate(OBSERVE, [area])
    notebook.start(place)
    expect(notebook.prompt(place)).to_have_text(ENDED)
    seconds, silence = time.monotonic() - start, notebook.page.evaluate(SILENCE)
    output = notebook.output(place)
    failed = output.locator("[data-mime-type='application/vnd.jupyter.error'], [data-mime-type$='stderr']").count()
    return Run(seconds, silence, int(failed > 0), output.inner_text())
