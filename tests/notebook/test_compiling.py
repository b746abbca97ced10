"""A program that compiles on the engine's thread holds up only those who wait for it."""

import json
from collections.abc import Iterator

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.stop import Record, stop

pytestmark = pytest.mark.notebook

GAPS = """
gaps = []

async def beat():
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        now = time.monotonic()
        gaps.append(now - last)
        last = now

beating = asyncio.create_task(beat())
compiled, start = lazy.stats.compilations, time.monotonic()
await lazy.generate(token_ids=PROMPT, max_tokens=2)
seconds, compiled = time.monotonic() - start, lazy.stats.compilations - compiled
beating.cancel()
print(json.dumps(dict(largest=max(gaps), seconds=seconds, compiled=compiled)))
"""


@pytest.fixture
def lazy(notebook: Notebook) -> Iterator[None]:
    """Open a session `lazy` that has compiled nothing yet."""
    assert (
        notebook.run(
            "lazy = await open_tiny(precompile='lazy', restore='off', progress=False); print(lazy.stats.programs)"
        )
        == "1\n"
    )
    yield
    notebook.run("await lazy.close()")


@pytest.mark.usefixtures("lazy")
def test_the_notebooks_loop_turns_while_a_program_compiles(notebook: Notebook, record_property: Record) -> None:
    measured = json.loads(notebook.run(GAPS))
    record_property("measured", measured)
    assert measured["compiled"] == 2
    # A loop that waited for one of the two compilations would stand still for about half of the time.
    assert measured["largest"] < measured["seconds"] / 4


@pytest.mark.usefixtures("lazy")
def test_a_cell_that_waits_for_a_compilation_is_stopped_at_once(notebook: Notebook, record_property: Record) -> None:
    wait = "await lazy.generate(token_ids=PROMPT, max_tokens=1)"
    stop(notebook, "lambda: lazy.stats.scheduler.running == 1", wait, record_property, "lazy.stats.compilations", 0)
    notebook.run("answer = await lazy.generate(token_ids=PROMPT, max_tokens=1)")
    assert notebook.run("print(list(answer.token_ids) == GOLDEN[:1], lazy.stats.compilations)") == "True 2\n"
