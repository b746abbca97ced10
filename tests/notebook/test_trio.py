"""Cells on trio, each on a loop of its own, use the same sessions."""

from collections.abc import Iterator

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.stop import Record, assert_usable, stop

pytestmark = pytest.mark.notebook


@pytest.fixture
def trio_cells(notebook: Notebook) -> Iterator[Notebook]:
    notebook.run("%autoawait trio")
    yield notebook
    notebook.run("%autoawait asyncio")


def test_trio_cells_open_generate_and_stream(trio_cells: Notebook) -> None:
    in_trio = "import sniffio\nasync def library(): return sniffio.current_async_library()\nprint(await library())"
    assert trio_cells.run(in_trio) == "trio\n"
    assert trio_cells.run("s = await open_tiny(precompile='lazy', progress=False)") == ""
    assert trio_cells.run("print(s.stats.programs); await s.close()") == "1\n"
    assert trio_cells.run("r = await session.generate(**EXPECTED); print(list(r.token_ids) == GOLDEN)") == "True\n"
    assert trio_cells.run("print(len([p async for p in session.stream(**EXPECTED)]))") == "24\n"
    assert trio_cells.run("print(len(session.generate_sync(**EXPECTED).token_ids))") == "24\n"


def test_a_handle_crosses_from_an_asyncio_cell_to_a_trio_cell(notebook: Notebook) -> None:
    notebook.run("handle = session.submit(**EXPECTED)")
    notebook.run("%autoawait trio")
    answer = notebook.run("print(list((await handle).token_ids) == GOLDEN)")
    notebook.run("%autoawait asyncio")
    assert answer == "True\n"


@pytest.mark.parametrize(
    "wait",
    [
        "await session.generate(token_ids=PROMPT, **LONG)",
        "async for piece in session.stream(token_ids=PROMPT, **LONG): pass",
    ],
    ids=["await generate", "async for"],
)
def test_a_stopped_trio_cell_leaves_its_wait_at_once(wait: str, trio_cells: Notebook, record_property: Record) -> None:
    stop(trio_cells, "generating()", wait, record_property)
    assert_usable(trio_cells)
