"""A notebook that is run again is warm, however its kernel ended and whatever it was doing."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.notebook.driver import Notebook

pytestmark = pytest.mark.notebook

PAGE, PAGES = 64, 4

LISTEN = """
import jax
compiled = []

def listen(event, seconds, **more):
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(event)

jax.monitoring.register_event_duration_secs_listener(listen)
"""
ASK = """
DOCUMENT = [3 + 7 * place % 500 for place in range(4 * 64 + 30)]
ASKED = dict(token_ids=DOCUMENT, max_tokens=20, ignore_eos=True)
answers = [await session.generate(**ASKED), await session.generate(**ASKED, temperature=0.8, seed=5)]
"""
TELL = """
await session.precompiled(progress=False)
print(json.dumps(dict(
    tokens=[list(answer.token_ids) for answer in answers],
    cached=[answer.cached_tokens for answer in answers],
    found_on_disk=session.stats.scheduler.disk_hit_tokens,
    compilations=[session.stats.compilations, len(compiled)],
)))
"""
WAIT_FOR_PAGES = """
while session.stats.scheduler.disk_pages < {pages}:
    await asyncio.sleep(0.01)
"""
WORK = """
when(lambda: session.stats.scheduler.disk_pages >= {pages}, "saving")
session.submit(token_ids=DOCUMENT, **LONG)
for number in range(3, 500):
    await session.generate(token_ids=[number, *DOCUMENT], max_tokens=5)
"""
COMPARE = """
asked = [dict(ASKED, token_ids=[number, *DOCUMENT]) for number in range(3, 13)] + [ASKED]
async with open_tiny(progress=False, prefix_cache=False) as cold:
    expected = [await cold.generate(**each) for each in asked]
found = [await session.generate(**each) for each in asked]
print([answer.token_ids for answer in found] == [answer.token_ids for answer in expected])
print(sum(answer.cached_tokens for answer in found))
"""


def run_all(notebook: Notebook, prelude: str) -> dict[str, Any]:
    """Run the notebook from the first cell to the last; return its report."""
    notebook.run(LISTEN)
    notebook.run(prelude)
    notebook.run("session = await open_tiny()")
    notebook.run(ASK)
    report: dict[str, Any] = json.loads(notebook.run(TELL))
    return report


@pytest.mark.parametrize(
    "end", [Notebook.restart, pytest.param(Notebook.kill, marks=pytest.mark.wide)], ids=["restarted", "killed"]
)
def test_a_notebook_that_is_run_again_compiles_nothing_and_finds_its_prompt_on_disk(
    end: Callable[[Notebook], object], fresh: Notebook, prelude: str
) -> None:
    """Check this without `session.save()` and without `session.close()`."""
    cold = run_all(fresh, prelude)
    assert (cold["cached"], cold["found_on_disk"]) == ([0, PAGES * PAGE], 0)
    fresh.run(WAIT_FOR_PAGES.format(pages=PAGES))
    end(fresh)
    warm = run_all(fresh, prelude)
    assert warm["tokens"] == cold["tokens"]
    assert warm["cached"] == [PAGES * PAGE, PAGES * PAGE]
    assert warm["found_on_disk"] == PAGES * PAGE
    assert warm["compilations"] == [0, 0]
    assert fresh.run("len(jax.jit(lambda x: x * 3)(jax.numpy.ones(3))); print(len(compiled) > 0)") == "True\n"
    assert fresh.log() == ""


@pytest.mark.wide
def test_a_kernel_that_is_killed_while_it_generates_and_saves_leaves_nothing_that_is_wrong(
    fresh: Notebook, prelude: str
) -> None:
    fresh.run("session = await open_tiny(progress=False)")
    fresh.run(ASK)
    for pages in (PAGES + 1, 8 * PAGES):
        fresh.start(WORK.format(pages=pages)).wait_for("saving\n")
        fresh.kill()
        fresh.run(prelude)
        fresh.run("session = await open_tiny(progress=False)")
        fresh.run(ASK)
        same, hits = fresh.run(COMPARE).split()
        assert same == "True"
        assert int(hits) >= PAGES * PAGE
    assert fresh.log() == ""
