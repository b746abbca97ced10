"""Press the stop button while a cell waits for the engine."""

import textwrap
from collections.abc import Callable

from tests.notebook.driver import Notebook

HALF_A_SECOND = 0.5
RENDERED = 2.0
"""Seconds that IPython may take to render the traceback before it answers: 0.3 on an idle machine."""

Record = Callable[[str, object], None]


def stop(notebook: Notebook, condition: str, wait: str, record: Record) -> None:
    """Run a cell that waits, and interrupt it when the condition holds; it must leave the wait within half a second."""
    body = textwrap.indent(wait, "    ")
    cell = notebook.start(f"when({condition}, 'now')\ntry:\n{body}\nfinally: print(time.monotonic(), flush=True)")
    cell.wait_for("now\n")
    outputs, sent, answered = cell.interrupt()
    left = float(outputs.stdout.split()[-1])
    record("left", round(left - sent, 3))
    record("answered", round(answered - sent, 3))
    assert outputs.error in ("CancelledError", "KeyboardInterrupt"), outputs
    assert outputs.stderr == "", outputs.stderr
    assert left - sent < HALF_A_SECOND, f"the wait was left after {left - sent:.2f} s"
    assert answered - sent < RENDERED, f"the kernel answered after {answered - sent:.2f} s"


def assert_usable(notebook: Notebook) -> None:
    """Check that the session gives right answers, and holds nothing for the interrupted request."""
    answer = notebook.run(
        "answer = await session.generate(**EXPECTED)\n"
        "counts = session.stats.scheduler\n"
        "print(list(answer.token_ids) == GOLDEN, counts.running, counts.waiting, counts.pages - counts.free_pages)"
    )
    assert answer == "True 0 0 0\n", answer
