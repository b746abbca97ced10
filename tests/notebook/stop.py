"""Press the stop button while a cell waits for the engine."""

import textwrap
from collections.abc import Callable

from tests.notebook.driver import Notebook
from tests.waiting import PATIENCE

GENERATED = "session.stats.scheduler.generated_tokens / LONG['max_tokens']"
"""The generated tokens so far, as a share of a long request."""
SOON = 1 / 10
"""The largest share of a long request until the end of a wait: a few seconds of work."""
HOLD = f"""
from rekindle.core.device.programs.lowering import Programs
over, compile_now = threading.Event(), Programs.compile

def compile_until_it_is_over(*arguments):
    program = compile_now(*arguments)
    over.wait({PATIENCE})
    return program

Programs.compile = compile_until_it_is_over
"""
"""Code to hold all compilations until `LET_GO`: an interrupt surely comes first."""
LET_GO = "over.set(); Programs.compile = compile_now"

Record = Callable[[str, object], None]


def stop(
    notebook: Notebook, condition: str, wait: str, record: Record, done: str = GENERATED, most: float = SOON
) -> None:
    """Run a cell that waits, and interrupt it when the condition holds; it must leave the wait soon.

    Args:
        done: an expression for the progress of the awaited work, on a machine of any speed.
        most: the most progress until the end of the wait.
    """
    body, report = textwrap.indent(wait, "    "), f"print(time.monotonic(), {done} - before, flush=True)"
    cell = notebook.start(f"before = {done}\nwhen({condition}, 'now')\ntry:\n{body}\nfinally: {report}")
    cell.wait_for("now\n")
    outputs, start, answered = cell.interrupt()
    end, growth = map(float, outputs.stdout.split()[-2:])
    record("left", round(end - start, 3))
    record("grown", round(growth, 4))
    record("answered", round(answered - start, 3))
    assert outputs.error in ("CancelledError", "KeyboardInterrupt"), outputs
    assert outputs.stderr == "", outputs.stderr
    assert growth <= most, (
        f"the wait was left when {done} had grown by {growth}, {end - start:.2f} s after the interrupt"
    )


def assert_usable(notebook: Notebook) -> None:
    """Check the session's answers, and that nothing is held for the interrupted request."""
    answer = notebook.run(
        "answer = await session.generate(**EXPECTED)\n"
        "counts = session.stats.scheduler\n"
        "print(list(answer.token_ids) == GOLDEN, counts.running, counts.waiting, counts.pages - counts.free_pages)"
    )
    assert answer == "True 0 0 0\n", answer
