"""A kernel ends by itself, before its requests do, and starts again, whatever its sessions are doing."""

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.kernels import COLAB
from tests.notebook.stop import Record

pytestmark = pytest.mark.notebook


def assert_ended(status: int, kernel: str) -> None:
    """Check the exit of the kernel: by itself, without a crash, with most of a minute to go for its request.

    ipykernel 6.17.1 does not end in a notebook with an import of absl, as by flax and orbax: absl closes the kernel's
    stderr at exit, which waits for ever. A front end then ends it by force.
    """
    assert status == 0 or (kernel == COLAB and status < 0)


@pytest.mark.wide
def test_a_kernel_restarts_while_it_generates_and_ends_while_a_session_is_open(
    fresh: Notebook, prelude: str, kernel: str, record_property: Record
) -> None:
    # A compilation that takes long would be waited for, and said to be.
    fresh.run("session = await open_tiny(progress=False); await session.precompiled(progress=False)")
    fresh.run("stream = session.stream(token_ids=PROMPT, **LONG); await anext(stream)")
    assert fresh.run("print(session.stats.scheduler.running)") == "1\n"
    seconds, status = fresh.restart()
    record_property("restart", (round(seconds, 2), status))
    assert_ended(status, kernel)

    fresh.run(prelude)
    output = fresh.run("session = await open_tiny(precompile='lazy', progress=False); print(session.stats.programs)")
    assert output == "1\n"
    seconds, status = fresh.shutdown()
    record_property("shutdown", (round(seconds, 2), status))
    assert_ended(status, kernel)
    assert fresh.log() == ""
