"""Our errors show the lines of the user's own code and the message; IPython shows the rest on request."""

import re

import pytest

from tests.notebook.driver import Notebook

pytestmark = pytest.mark.notebook

A_GLANCE = 13
"""The most lines of an error from one line of a cell."""
LAST = "`%tb Plain` shows the whole traceback."


def error_lines(notebook: Notebook, code: str) -> list[str]:
    """Run a cell, and return the lines of its errors, `%tb`'s included."""
    before = len(notebook.messages)
    notebook.start(code).end()
    parts = [
        part
        for message in notebook.messages[before:]
        if message["msg_type"] == "error"
        for part in message["content"]["traceback"]
    ]
    return re.sub("\x1b\\[[0-9;]*m", "", "\n".join(parts)).splitlines()


@pytest.mark.parametrize(
    ("cell", "message"),
    {
        "await session.generate('w3', temprature=1)": "InvalidRequest: unknown keyword 'temprature'; did you mean",
        "session.generate_sync('')": "InvalidRequest: the prompt is empty",
        "await session.generate(['w3', ''])": "InvalidBatch: 1 of 2 prompts",
        "await rekindle.open('/no/such/model')": "ModelNotFound: no model '/no/such/model'",
        "rekindle.open('/no/such/model', max_contxt=3)": "ConfigError: unknown setting 'max_contxt'; did you mean",
        "session.submit(token_ids=PROMPT, **LONG).result(timeout=0)": "TimeoutError: the request had not ended",
    }.items(),
)
def test_an_error_shows_the_line_of_the_cell_and_the_message(notebook: Notebook, cell: str, message: str) -> None:
    lines = error_lines(notebook, cell)
    assert len(lines) <= A_GLANCE
    assert f"----> 1 {cell}" in lines
    assert lines[-1] == LAST
    assert any(line.startswith(message) for line in lines)
    assert not any("rekindle/" in line for line in lines)
    notebook.run("for request in session.requests.values(): request.cancel()")  # a timeout leaves its request running


def test_the_whole_traceback_is_shown_on_request(notebook: Notebook) -> None:
    short = error_lines(notebook, "await session.generate('w3', temprature=1)")
    assert error_lines(notebook, "%tb") == short
    whole = error_lines(notebook, "%tb Plain")
    assert sum("rekindle/" in line for line in whole) > 2
    assert not any(LAST in line for line in whole)
    assert error_lines(notebook, "%tb") == short


def test_an_interrupt_shows_the_line_of_the_cell_and_what_it_kept(notebook: Notebook) -> None:
    for call in ("await session.generate", "session.generate_sync"):
        cell = notebook.start(f"when(generating(), 'now')\n{call}(token_ids=PROMPT, **LONG)")
        cell.wait_for("now\n")
        lines = re.sub("\x1b\\[[0-9;]*m", "", cell.interrupt()[0].traceback).splitlines()
        assert len(lines) <= A_GLANCE
        assert f"----> 2 {call}(token_ids=PROMPT, **LONG)" in lines
        assert "the text so far is in `generation` of this error" in lines[-2]
        assert sum("rekindle/" in line for line in error_lines(notebook, "%tb Plain")) > 2
