"""Open notebooks with the tiny model, each in a page and on a kernel of its own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.browser.chromium import open_browser
from tests.browser.driver import LIMIT, SIZE, Notebook, open_notebook
from tests.browser.lab import Lab, open_lab
from tests.notebook.conftest import prelude, tiny_model
from tests.notebook.kernels import environment

__all__ = ["prelude", "tiny_model"]

SCREENSHOTS = Path(__file__).parent / "screenshots"


class Opens(Protocol):
    """A function to open a notebook of some cells, after a first cell with an open `session`."""

    def __call__(self, *cells: str) -> AbstractContextManager[Notebook]: ...


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the folder of the screenshots."""
    terminalreporter.write_line(f"screenshots: {SCREENSHOTS}")


@pytest.fixture(scope="session")
def start_lab(
    shared_caches: dict[str, Path], prelude: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], AbstractContextManager[Lab]]:
    """Return a function that starts a server.

    Its kernels have the names of the prelude, and a cache with only the entries of all tests.
    """

    def start() -> AbstractContextManager[Lab]:
        home, cache = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("cache")
        cache.chmod(0o700)
        for name, path in shared_caches.items():
            (cache / name).symlink_to(path)
        variables = {**environment(home / "ipython"), "REKINDLE_CACHE": str(cache)}
        return open_lab(home, variables, prelude)

    return start


@pytest.fixture(scope="session")
def lab(start_lab: Callable[[], AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """Return the server of JupyterLab."""
    with start_lab() as lab:
        yield lab


@pytest.fixture(scope="session")
def context() -> Iterator[BrowserContext]:
    """Open one browser, with one cache, for all pages."""
    SCREENSHOTS.mkdir(exist_ok=True)
    expect.set_options(timeout=LIMIT)
    with open_browser() as browser, browser.new_context(viewport=SIZE) as context:
        context.set_default_timeout(LIMIT)
        yield context


@pytest.fixture
def opens(context: BrowserContext, lab: Lab, request: pytest.FixtureRequest) -> Opens:
    """Open notebooks of the test's own. At the end, photograph each and check it for complaints."""

    @contextmanager
    def opens(*cells: str) -> Iterator[Notebook]:
        name = f"{request.node.name}.ipynb"
        lab.write(name, ["session = await open_tiny(progress=False)", *cells])
        with open_notebook(context, lab, name) as notebook:
            try:
                notebook.run(0)
                assert notebook.output(0).inner_text() == ""
                yield notebook
            finally:
                warnings = notebook.warnings()
                notebook.picture(SCREENSHOTS / f"{Path(name).stem}.png")
                lab.end_kernels()
            assert notebook.complaints == []
            assert warnings == []

    return opens
