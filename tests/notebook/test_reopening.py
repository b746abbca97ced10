"""A cell that opens a session and runs again has the same session, unless something has changed."""

import pytest

from tests.notebook.driver import Notebook

pytestmark = pytest.mark.notebook
OPENS = "mine = await rekindle.open(MODEL, progress=True, **(SETTINGS | {'precompile': 'lazy'}))"
FACTS = "print(mine is former, sum(each.name == 'rekindle-engine' for each in threading.enumerate()) - engines)"
"""Prints whether the session is the former one, and the number of engines beside those of the prelude."""


@pytest.fixture
def opened(notebook: Notebook) -> Notebook:
    """Run the cell once, and keep its session in `former`."""
    notebook.run(
        "import gc, pathlib, shutil, tempfile; MODEL = shutil.copytree(open_tiny()._model, tempfile.mkdtemp() + '/m')"
    )
    notebook.run("engines = sum(each.name == 'rekindle-engine' for each in threading.enumerate())")
    assert notebook.start(OPENS).end().error == ""
    notebook.run("former = mine")
    return notebook


def open_again(notebook: Notebook) -> None:
    cell = notebook.start(OPENS).end()
    assert cell.error == "", cell.traceback


def close(notebook: Notebook) -> None:
    notebook.run("await mine.close(); await former.close(); del mine, former; gc.collect()")


def test_a_cell_that_runs_again_has_its_session_at_once(opened: Notebook) -> None:
    cell = opened.start(OPENS).end()
    assert cell.error == ""
    assert (cell.displays, cell.stdout) == (1, "")
    assert opened.run(FACTS) == "True 1\n"
    assert opened.run("print(list((await mine.generate(**EXPECTED)).token_ids) == GOLDEN)") == "True\n"
    close(opened)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "engines"),
    [
        ("await former.close()", 1),
        ("await former.update_weights(MODEL)", 2),
        ("await former.sleep()", 2),
        ("pathlib.Path(MODEL, 'config.json').touch()", 2),
        ("SETTINGS = SETTINGS | {'max_waiting': 3}", 2),
    ],
)
def test_a_change_calls_for_another_engine(opened: Notebook, change: str, engines: int) -> None:
    opened.run(f"before = SETTINGS; {change}")
    open_again(opened)
    assert opened.run(FACTS) == f"False {engines}\n"
    opened.run("SETTINGS = before")
    close(opened)


@pytest.mark.wide
def test_two_sessions_of_one_cell_or_of_a_function_are_two(opened: Notebook) -> None:
    both = "pair = [await rekindle.open(MODEL, **SETTINGS) for _ in range(2)]; print(pair[0] is pair[1])"
    assert opened.run(both) == "False\n"
    opened.run("for each in pair: await each.close()")
    opened.run("one = await open_tiny()")
    assert opened.run("two = await open_tiny(); print(one is two)") == "False\n"
    opened.run("await one.close(); await two.close(); del one, two, pair, each")
    close(opened)


@pytest.mark.wide
def test_a_session_without_a_name_is_gone_and_leaves_no_thread(opened: Notebook) -> None:
    opened.run("threads = threading.active_count(); await mine.close(); del mine, former; gc.collect()")
    assert opened.run("print(threading.active_count() < threads)") == "True\n"
    for _ in range(3):
        open_again(opened)
        opened.run("del mine; gc.collect()")
    opened.run(
        "import time\nfor look in range(200):\n    if threading.active_count() < threads: break\n    time.sleep(0.05)"
    )
    assert opened.run("print(threading.active_count() < threads)") == "True\n"
