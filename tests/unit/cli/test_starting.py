"""A command says on a terminal that it starts, and an import in a cell of a notebook says so there."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import IPython
import pytest

from rekindle.cli import starting
from tests.waiting import until_blocking


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("argv", "original"),
    [(["/env/bin/rekindle", "chat"], ["rekindle", "chat"]), (["-m", "chat"], ["python", "-m", "rekindle", "chat"])],
)
def test_a_command_shows_a_line_while_it_starts_and_removes_it(
    argv: list[str], original: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(starting, "PATIENCE_SECONDS", 0.0)
    with starting.announced():
        until_blocking(screen.getvalue, "a word was written")
        assert screen.getvalue() == starting.LINE
    assert screen.getvalue() == starting.LINE + starting.ERASE
    monkeypatch.setattr(starting, "PATIENCE_SECONDS", 60.0)
    with starting.announced():
        pass
    assert screen.getvalue() == starting.LINE + starting.ERASE, "a fast start has no line"


def test_ctrl_c_during_the_start_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "argv", ["/env/bin/rekindle", "chat"])
    with pytest.raises(SystemExit) as end, starting.announced():
        raise KeyboardInterrupt
    assert end.value.code == 130
    monkeypatch.setattr(sys, "argv", ["/env/bin/ipython"])
    monkeypatch.setattr(IPython, "get_ipython", object)
    with pytest.raises(KeyboardInterrupt), starting.announced():
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("argv", "screen"),
    [
        (["/env/bin/rekindle", "chat"], io.StringIO()),
        (["/env/bin/rekindle", "chat", "--quiet"], Terminal()),
        (["ipykernel_launcher.py"], Terminal()),
        ([""], Terminal()),
    ],
)
def test_nothing_is_written_to_files_with_quiet_or_by_other_programs(
    argv: list[str], screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", argv)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(starting, "Timer", None)  # none is made
    with starting.announced():
        pass
    assert screen.getvalue() == ""


def test_an_import_in_a_notebook_shows_the_line_in_its_cell_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str, bool]] = []

    def display(content: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw
        calls.append((content["text/plain"], display_id, update))

    shell: Any = SimpleNamespace(kernel=object())
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(starting, "CELL_PATIENCE_SECONDS", 0.0)
    with starting.announced():
        until_blocking(lambda: calls, "a word was shown")
    (first, one_output, update), (last, same_output, updated) = calls
    assert (first, update, last, updated) == (starting.LINE, False, "", True)
    assert one_output == same_output
    monkeypatch.setattr(starting, "CELL_PATIENCE_SECONDS", 60.0)
    with starting.announced():
        pass
    assert len(calls) == 2, "a fast import shows nothing"


def test_an_import_in_a_terminal_of_ipython_shows_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, shell = Terminal(), object()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(starting, "PATIENCE_SECONDS", 0.0)
    with starting.announced():
        until_blocking(screen.getvalue, "a word was written")
    assert screen.getvalue() == starting.LINE + starting.ERASE
