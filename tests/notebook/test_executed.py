"""A notebook executed by papermill or the like has static outputs, without need of widgets or a kernel."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager

from tests.notebook.kernels import COLAB, CURRENT, command, environment
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.notebook, pytest.mark.tutorial]

CELLS = (
    "from rekindle.testing import fake_session; session = fake_session()",
    "await session.show(token_ids=[3, 1, 4], max_tokens=5)",
    "handle = session.submit(token_ids=[3, 1, 4], max_tokens=5); handle.display(); done = await handle",
    "done",
    "board = session.dashboard(); board",
    "board.stop(); session.cache.draw()",
    "await session.close()",
    "other = fake_session(); other.dashboard()",
    "from rekindle.core.concurrency.progress import Progress\n"
    "from rekindle.notebook.progress.bars import ProgressBars\n"
    "with ProgressBars(True) as bars:\n"
    "    for done in range(4): bars.show(Progress('compiling', done, 3, 'programs'))",
    "await other.generate(token_ids=[3, 1, 4], max_tokens=5)",
)


@pytest.mark.parametrize("kernel", [CURRENT, pytest.param(COLAB, marks=pytest.mark.older_kernel)])
def test_what_is_shown_is_static_html(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="it comes with `make tutorials`")
    for name, value in environment(tmp_path / "ipython").items():
        monkeypatch.setenv(name, value)
    manager: Any = KernelManager()
    manager.kernel_spec.argv = list(command(kernel))
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(notebook, km=manager, timeout=PATIENCE).execute(cleanup_kc=True)
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()
    opening, request, displayed, value, board, cache, _, moving, bar, _ = (cell.outputs for cell in notebook.cells)
    assert [each for each in opening if each.data["text/plain"]] == [], "a slow import leaves a removed line"
    assert "100.0% computed of 3 tokens" in moving[0].data["text/plain"], "as it was after the last cell"
    assert bar[0].data["text/plain"] == "compiling: 3 of 3 programs, 0 s"
    for outputs in (request, displayed, value, board, cache, moving[:1], bar):
        bundles = [output.data for output in outputs if "data" in output and output.data.get("text/html") != ""]
        assert all("application/vnd.jupyter.widget-view+json" not in data for data in bundles)
        assert any("text/html" in data or "image/svg+xml" in data for data in bundles), outputs
    for outputs in (request, displayed, value):
        assert any("ended: length, 5 tokens" in output.data.get("text/html", "") for output in outputs)
