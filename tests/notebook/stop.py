"""Press the stop button while a cell waits for the engine."""

import textwrap
from collections.abc import Callable

from tests.notebook.driver import Notebook
from tests.waiting import PATIENCE

GENERATED = "session.stats.scheduler.generated_tokens / LONG['max_tokens']"
"""How much has been generated, as a share of a long request."""
SOON = 1 / 10
"""The share of a long request that may be generated until a wait is left: a few seconds of work."""
HOLD = f"""
from rekindle.core.device.programs.lowering import Programs
over, compile_now = threading.Event(), Programs.compile

def compile_until_it_is_over(*arguments):
    program = compile_now(*arguments)
    over.wait({PATIENCE})
    return program

Programs.compile = compile_until_it_is_over
"""
"""Code after which no compilation ends before `LET_GO`, so that an interrupt surely comes before that."""
LET_GO = "over.set(); Programs.compile = compile_now"

Record = Callable[[str, object], None]


def stop(
    notebook: Notebook, condition: str, wait: str, record: Record, done: str = GENERATED, most: float = SOON
) -> None:
    """Run a cell that waits, and interrupt it when the condition holds; it must leave the wait soon.

    Args:
        done: an expression that grows with the work that the wait is for, however fast the machine is.
        most: the most by which it may have grown when the wait is left.
    """
    body, told = textwrap.indent(wait, "    "), f"print(time.monotonic(), {done} - before, flush=True)"
    cell = notebook.start(f"before = {done}\nwhen({condition}, 'now')\ntry:\n{body}\nfinally: {told}")
    cell.wait_for("now\n")
    outputs, sent, answered = cell.interrupt()
    left, grown = map(float, outputs.stdout.split()[-2:])
    record("left", round(left - sent, 3))
    record("grown", round(grown, 4))
    record("answered", round(answered - sent, 3))
    assert outputs.error in ("CancelledError", "KeyboardInterrupt"), outputs
    assert outputs.stderr == "", outputs.stderr
    assert grown <= most, f"the wait was left when {done} had grown by {grown}, {left - sent:.2f} s after the interrupt"


def assert_usable(notebook: Notebook) -> None:
    """Check that the session gives right answers, and holds nothing for the interrupted request."""
    answer = notebook.run(
        "answer = await session.generate(**EXPECTED)\n"
        "counts = session.stats.scheduler\n"
        "print(list(answer.token_ids) == GOLDEN, counts.running, counts.waiting, counts.pages - counts.free_pages)"
    )
    assert answer == "True 0 0 0\n", answer
