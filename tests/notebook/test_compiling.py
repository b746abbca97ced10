"""A program's compilation on the engine's thread holds up only its own requests."""

import json
from collections.abc import Iterator

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.stop import HOLD, LET_GO, Record, stop

pytestmark = pytest.mark.notebook

TURNS = """
from rekindle.core.concurrency.threads import compiling
turns = []

async def turn():
    while True:
        await asyncio.sleep(0.001)
        if compiling:
            turns.append(lazy.stats.compilations - compiled)

await session.precompiled(progress=False)
compiled = lazy.stats.compilations
turning = asyncio.create_task(turn())
await lazy.generate(token_ids=PROMPT, max_tokens=2)
turning.cancel()
print(json.dumps([turns.count(number) for number in range(lazy.stats.compilations - compiled)]))
"""
"""Code to count the turns of the loop during each compilation for one request."""


@pytest.fixture
def lazy(notebook: Notebook) -> Iterator[None]:
    """Open a session `lazy` without any compiled program."""
    assert (
        notebook.run(
            "lazy = await open_tiny(precompile='lazy', restore='off', progress=False); print(lazy.stats.programs)"
        )
        == "1\n"
    )
    yield
    notebook.run("await lazy.close()")


@pytest.mark.wide
@pytest.mark.usefixtures("lazy")
def test_the_notebooks_loop_turns_while_a_program_compiles(notebook: Notebook, record_property: Record) -> None:
    turns = json.loads(notebook.run(TURNS))
    record_property("turns", turns)
    assert len(turns) == 2
    # A loop that waited for a compilation would have its next turn when that is over.
    assert min(turns) >= 5


@pytest.mark.usefixtures("lazy")
def test_a_cell_that_waits_for_a_compilation_is_stopped_at_once(notebook: Notebook, record_property: Record) -> None:
    wait = "await lazy.generate(token_ids=PROMPT, max_tokens=1)"
    notebook.run(HOLD)  # or the compiler might be done before the interrupt comes
    stop(notebook, "lambda: lazy.stats.scheduler.running == 1", wait, record_property, "lazy.stats.compilations", 0)
    notebook.run(LET_GO)
    notebook.run("answer = await lazy.generate(token_ids=PROMPT, max_tokens=1)")
    assert notebook.run("print(list(answer.token_ids) == GOLDEN[:1], lazy.stats.compilations)") == "True 2\n"
