"""Cells that run again and again leave nothing behind: no thread, file, array, widget or object of ours."""

import json
from collections.abc import Mapping

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.kernels import COLAB

pytestmark = [pytest.mark.notebook, pytest.mark.wide]
ROUNDS = 4
MODULE = "def ask(session, **options):\n    return session.generate(**options)  # {number}\n"
"""The user's own module; a round changes it, and IPython's autoreload takes the change."""
COUNTS = """
import collections, gc, os, pathlib, shutil, sys, tempfile, jax
FOLDER = pathlib.Path(tempfile.mkdtemp())
MODEL = shutil.copytree(open_tiny()._model, FOLDER / "m")
sys.path.insert(0, str(FOLDER))
# ipykernel closes the sockets of ended threads every ten seconds; here sooner, before they are counted.
sys.stdout.pub_thread._event_pipe_gc_seconds = 0.5

def counts():
    "Count threads, open files, live arrays, open widgets, and objects of ours by type."
    from ipywidgets.widgets import widget
    widgets = getattr(widget, "_instances", None)  # of ipywidgets 8
    widgets = widget.Widget.widgets if widgets is None else widgets
    for _ in range(3):
        gc.collect()
    names = collections.Counter(f"thread {each.name}" for each in threading.enumerate())
    types = (type(each) for each in gc.get_objects())
    ours = (each for each in types if str(each.__module__).startswith("rekindle"))
    objects = collections.Counter(f"object {each.__module__}.{each.__qualname__}" for each in ours)
    links = [each for each in pathlib.Path("/proc/self/fd").iterdir() if os.path.lexists(each)]
    files = collections.Counter(f"file {os.readlink(each)}" for each in links)
    return {**names, **objects, **files, "arrays": len(jax.live_arrays()), "widgets": len(widgets)}

def reset_values():
    "Drop what IPython keeps of the cells' values; the reset of IPython 7 leaves a second reference to each."
    get_ipython().run_line_magic("reset", "-f out")
    hidden = get_ipython().user_ns_hidden
    for name in [each for each in hidden if each[1:].isdigit()]:
        del hidden[name]
"""
OPENS = "import helper; mine = await rekindle.open(MODEL, **(SETTINGS | {'precompile': 'lazy'}))"
USES = (
    "answer = await helper.ask(mine, **EXPECTED, logprobs=2); stream = mine.stream(**EXPECTED); await anext(stream)",
    "stream.close(); del stream; _ = await mine.show(**EXPECTED)",
    "_ = await mine.show(token_ids=[PROMPT, PROMPT], max_tokens=5)",
    "rows = await mine.map([{'n': 'w5'}], template='{n}', max_tokens=3)",
    "board = mine.dashboard(); board",
    "board._panel._root._view_count = 1\nboard.stop()",  # as a front end reports it
    "chat = mine.chat(max_tokens=3); box = chat.widget(); box",
    "box.close(); explorer = mine.explore(answer); explorer",
    "explorer.close(); reset_values()",
)
DELETES = "del mine, answer, rows, board, chat, box, explorer, _"
"""Deletes all names of a round."""


def count(notebook: Notebook) -> Mapping[str, int]:
    numbers: Mapping[str, int] = json.loads(notebook.run("print(json.dumps(counts()))"))
    return numbers


@pytest.mark.parametrize("ends", [(), (DELETES,), ("await mine.close()", DELETES)], ids=["again", "deleted", "closed"])
def test_a_round_of_cells_leaves_nothing_behind(kernel: str, fresh: Notebook, ends: tuple[str, ...]) -> None:
    fresh.run(COUNTS)
    if kernel != COLAB:  # its IPython 7 imports `imp` for autoreload, which its Python has no more
        fresh.run("%load_ext autoreload\n%autoreload 2")

    def run_cells(number: int) -> None:
        fresh.run(f"_ = (FOLDER / 'helper.py').write_text({MODULE.format(number='x' * number)!r})")
        for code in (OPENS, *USES, *ends):
            cell = fresh.start(code).end()
            assert cell.error == "", cell.traceback
        fresh.run("time.sleep(1.5)")  # threads of drawings end

    for number in range(2):  # the first leave what stays for all: modules, pools of threads
        run_cells(number)
    before = count(fresh)
    assert before["arrays"] == 0 if ends else before["arrays"] > 0
    for number in range(2, 2 + ROUNDS):
        run_cells(number)
    after = count(fresh)
    growth = {name: number - before.get(name, 0) for name, number in after.items()}
    assert {name: number for name, number in growth.items() if number >= ROUNDS / 2} == {}
