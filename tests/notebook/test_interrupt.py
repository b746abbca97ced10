"""The stop button ends the wait of a cell at once, and nothing else."""

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.stop import HOLD, LET_GO, Record, assert_usable, stop

pytestmark = pytest.mark.notebook

WAITS = {
    "await generate": "await session.generate(token_ids=PROMPT, **LONG)",
    "await a batch": "await session.generate(token_ids=[PROMPT] * 4, **LONG)",
    "await a handle": "handle = session.submit(token_ids=PROMPT, **LONG)\nawait handle",
    "async for": "async for piece in session.stream(token_ids=PROMPT, **LONG): pass",
    "generate_sync": "session.generate_sync(token_ids=PROMPT, **LONG)",
    "result": "session.submit(token_ids=PROMPT, **LONG).result()",
    "for": "for piece in session.stream_sync(token_ids=PROMPT, **LONG): pass",
    "the body of a for": "for piece in session.stream_sync(token_ids=PROMPT, **LONG): time.sleep(60)",
    # ipykernel's own handler only tells the loop, which such a cell blocks.
    "generate_sync in a cell that awaits": "await asyncio.sleep(0)\nsession.generate_sync(token_ids=PROMPT, **LONG)",
    "show_sync in a cell that awaits": "await asyncio.sleep(0)\nsession.show_sync(token_ids=PROMPT, **LONG)",
}


COUNT_COMPILATIONS = """
import jax
seen = []

def see(event, seconds, **more):
    if event == "/jax/core/compile/backend_compile_duration":
        seen.append(event)

jax.monitoring.register_event_duration_secs_listener(see)
"""
BEFORE_OPEN = 3
"""The programs of `open`: to make the state, to compute a prompt, and to compute a token."""


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_stopped_cell_leaves_its_wait_at_once_and_the_session_usable(
    wait: str, notebook: Notebook, record_property: Record
) -> None:
    stop(notebook, "generating()", wait, record_property)
    assert_usable(notebook)


@pytest.mark.parametrize("wait", ["await session.generate(**EXPECTED)", "session.generate_sync(**EXPECTED)"])
def test_a_stopped_cell_ends_its_own_request_alone(wait: str, notebook: Notebook, record_property: Record) -> None:
    notebook.run(
        "others = [session.submit(token_ids=PROMPT, **LONG) for _ in range(2)]\n"
        "while session.stats.scheduler.running < 2: time.sleep(0.01)"
    )
    stop(notebook, "lambda: session.stats.scheduler.waiting == 1", wait, record_property)
    assert notebook.run("print([other.done for other in others])") == "[False, False]\n"
    notebook.run("for other in others: other.cancel()")
    assert_usable(notebook)


def test_stopping_open_while_it_compiles_ends_its_engine(notebook: Notebook, record_property: Record) -> None:
    compiling = "lambda: 'rekindle-programs' in ''.join(thread.name for thread in threading.enumerate())"
    engines = "[thread for thread in threading.enumerate() if thread.name == 'rekindle-engine']"
    notebook.run(f"engines = {engines}")
    notebook.run(COUNT_COMPILATIONS)
    notebook.run(HOLD)
    opening = "await open_tiny(restore='off', progress=False)"
    stop(notebook, compiling, opening, record_property, "len(seen)", BEFORE_OPEN - 1)
    notebook.run(LET_GO)
    notebook.run(f"while {{*{engines}}} - {{*engines}}: time.sleep(0.01)")
    assert (
        notebook.run("async with open_tiny(precompile='lazy', progress=False) as s: print(s.stats.programs)") == "1\n"
    )
    assert_usable(notebook)
