"""Progress is drawn as bars on a terminal, and as a few lines in a pipe."""

import contextlib
import io
import logging
import multiprocessing
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait
from rekindle.notebook import front_end
from rekindle.notebook.log import LOG, tell_restored
from rekindle.notebook.progress import bars as faces
from rekindle.notebook.progress.awaited_programs import DELAY_SECONDS, POLL_SECONDS, wait_for_look, wait_for_more
from rekindle.notebook.progress.bars import ProgressBars, bar_bundle
from tests.unit.cards import Page, as_read
from tests.waiting import PATIENCE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(*reports: Progress) -> None:
    with ProgressBars(True) as bars:
        for report in reports:
            bars.show(report)


def terminal_text(*reports: Progress) -> str:
    """Return the text of some reports on a terminal."""
    with contextlib.redirect_stderr(Terminal()) as terminal:
        draw(*reports)
    return terminal.getvalue()


@pytest.fixture
def no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the handlers of pytest away from the logger, as in a script."""
    monkeypatch.setattr(LOG, "hasHandlers", lambda: False)


def test_a_log_has_the_stages_at_the_level_debug(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, LOG.name)
    monkeypatch.setattr(faces, "monotonic", lambda: 0.0)
    draw(*(Progress("loading weights", done, 300, "tensors") for done in range(301)), Progress("compiling", 0, 4, "p"))
    assert caplog.messages == ["loading weights", "compiling"]
    caplog.set_level(logging.INFO, LOG.name)
    draw(Progress("compiling", 0, 4, "p"))
    assert len(caplog.messages) == 2
    assert capsys.readouterr().err == ""


def test_a_script_gets_one_line_for_a_start_unless_its_logger_is_quieter(
    no_handlers: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = RestoreReport(4, 4, 0, 2, 128, 1.5, 9.0, {"page": ("1", "2")}, cold_seconds=8.0)
    spent = replace(report, spent={"files": 0.25, "weights": 1.25})
    assert str(spent).splitlines()[1] == "  opening: 250 ms files, 1.25 s weights"
    line = "m: 4 programs loaded, 0 compiled; 2 cached pages (128 tokens) found; open after 1.50 s (8.00 s cold); "
    for level, lines in (
        (logging.NOTSET, [f"{line}saved 9.00 s of compiling"]),
        (logging.WARNING, []),
        (logging.DEBUG, ["compiling", f"{line}saved 9.00 s of compiling", "m: stored entries differ in page"]),
    ):
        monkeypatch.setattr(LOG, "level", level)
        draw(Progress("compiling", 0, 4, "p"))
        tell_restored("m", report)
        output = capsys.readouterr().err.splitlines()
        assert [text[: len(expected)] for text, expected in zip(output, lines, strict=True)] == lines


def test_a_pipe_hears_of_long_stages_every_ten_seconds(
    no_handlers: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr(faces, "monotonic", lambda: float(next(now)))
    draw(*(Progress("downloading", done * 10**6, 8 * 10**6) for done in range(9)))
    assert capsys.readouterr().err.splitlines() == [
        "downloading: 3 of 8 MB, 12 s, about 20 s left",
        "downloading: 7 of 8 MB, 24 s, about 3 s left",
        "downloading: 8 of 8 MB, 27 s",
    ]


def test_a_pipe_hears_once_that_a_stage_is_complete(
    no_handlers: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report the whole amount often, as a download does during its last check."""
    now = iter(range(0, 1000, 12))
    monkeypatch.setattr(faces, "monotonic", lambda: float(next(now)))
    draw(
        Progress("downloading", 0, 8 * 10**6),
        Progress("downloading", 10**6, 8 * 10**6),
        *(Progress("downloading", 8 * 10**6, 8 * 10**6) for _ in range(30)),
    )
    assert capsys.readouterr().err.splitlines() == [
        "downloading: 0 of 8 MB, 12 s",
        "downloading: 1 of 8 MB, 24 s, about 3 min left",
        "downloading: 8 of 8 MB, 36 s",
    ]


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    text = terminal_text(Progress("compiling", 0, 4, "programs"), Progress("compiling", 4, 4, "programs"))
    assert re.search(r"4/4 programs, \d\d:\d\d\n$", text)


def test_a_stage_without_parts_has_no_counts() -> None:
    opening = Progress("opening the model", 0, 1, "")
    assert bar_bundle(opening, 3.0)["text/plain"] == "opening the model: 3 s"
    assert as_read(Page(bar_bundle(opening, 3.0)["text/html"])) == "opening the model  3 s", "also without styles"
    assert "aria-valuenow" not in bar_bundle(opening, 3.0)["text/html"]
    text = terminal_text(opening, Progress("opening the model", 1, 1, ""))
    assert re.search(r"opening the model: \d\d:\d\d\n$", text)
    assert not re.search(r"1/1|of 1", text)


def test_a_download_has_an_estimate_once_there_is_a_basis_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = Progress("downloading", 10**4, 10**8), Progress("downloading", 10**7, 10**8)
    assert [first.remaining(0.1), first.remaining(2), later.remaining(0.5)] == [None, None, None]
    assert first.remaining(30) == "about 83 h left"
    assert later.remaining(30) == "about 4 min left"
    now = iter([0.0, *[2.0] * 9])
    monkeypatch.setattr(faces, "monotonic", lambda: next(now))
    assert "left" not in terminal_text(first)
    now = iter([0.0, *[2.0] * 9])
    assert "about 18 s left" in terminal_text(first, later)


def test_a_bar_that_does_not_stay_leaves_an_empty_line() -> None:
    with contextlib.redirect_stderr(Terminal()) as terminal, ProgressBars(True, stays=False) as bars:
        bars.show(Progress("loading", 0, 4, "tensors"))
        bars.show(Progress("loading", 4, 4, "tensors"))
    *_, bar, last = terminal.getvalue().split("\r")
    assert "\n" not in terminal.getvalue()
    assert (bar.strip(), last) == ("", "")


def test_a_bar_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stage = "downloading a model with a long name (from a place with a long name too, which matters less)"
    text = terminal_text(Progress(stage, 1, 10**8), Progress(stage, 10**8, 10**8))
    assert max(len(line) for line in text.replace("\r", "\n").splitlines()) <= 76
    assert "a long name: 100%|" in text


def test_a_stage_that_others_replace_leaves_no_line_and_does_not_come_back() -> None:
    text = terminal_text(
        Progress("opening", 0, 1, "model"),
        Progress("downloading", 0, 10),
        Progress("downloading", 10, 10),
        Progress("opening", 1, 1, "model"),
    )
    assert [line.rpartition("\r")[2].partition(":")[0] for line in text.split("\n")] == ["downloading", ""]


def test_nothing_is_drawn_where_nothing_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBars(False) as bars:
        bars.show(Progress("compiling", 0, 4))
    assert capsys.readouterr().err == ""


def test_a_process_without_stderr_is_served() -> None:
    with contextlib.redirect_stderr(None):
        draw(Progress("compiling", 0, 4))


def test_a_bar_leaves_the_start_method_of_multiprocessing_open() -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    terminal_text(Progress("compiling", 0, 4))
    assert multiprocessing.get_start_method(allow_none=True) == before


class FakeOutput:
    """An output of a cell, with a record of its bundles."""

    outputs: list["FakeOutput"]

    def __init__(self) -> None:
        self.bundles: list[Mapping[str, str]] = []
        self.updated = threading.Event()
        self.outputs.append(self)

    def draw(self, bundle: Mapping[str, str]) -> None:
        self.bundles.append(bundle)
        self.updated.set()


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[FakeOutput]:
    """Have this process take itself for a kernel without ipywidgets, and record its outputs."""
    outputs: list[FakeOutput] = []
    monkeypatch.setattr(FakeOutput, "outputs", outputs, raising=False)
    monkeypatch.setattr(front_end, "CellOutput", FakeOutput)
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(faces, "SECONDS", 0.01)
    return outputs


def test_a_cell_keeps_the_last_state_of_each_bar_as_html(
    outputs: list[FakeOutput], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faces, "SECONDS", 3600.0)
    monkeypatch.setattr(faces, "monotonic", lambda: 0.0)
    with ProgressBars(True) as bars:
        for done in range(273):
            bars.show(Progress("loading <b>weights</b>", done, 272, "tensors"))
        for done in range(3):
            bars.show(Progress("compiling", done, 3, "programs"))
    texts = [output.bundles[-1]["text/plain"] for output in outputs]
    assert texts == ["loading <b>weights</b>: 272 of 272 tensors, 0 s", "compiling: 2 of 3 programs, 0 s"]
    assert [set(output.bundles[-1]) for output in outputs] == [{"text/plain", "text/html"}] * 2
    assert "width:100.0%" in outputs[0].bundles[-1]["text/html"]
    assert "width:66.7%" in outputs[1].bundles[-1]["text/html"], "it was left before its end"
    assert "<b>" not in outputs[0].bundles[-1]["text/html"]
    assert len(outputs[0].bundles) < 100, "not every report is drawn"
    assert capsys.readouterr().err == ""


def test_a_bar_in_a_cell_that_another_replaces_before_it_began_leaves_nothing(outputs: list[FakeOutput]) -> None:
    draw(Progress("opening", 0, 1, "model"), Progress("downloading", 1, 10))
    assert [output.bundles[-1]["text/html"] == "" for output in outputs] == [True, False]


def test_a_bar_in_a_cell_goes_on_between_two_reports_and_not_after_its_end(outputs: list[FakeOutput]) -> None:
    with ProgressBars(True) as bars:
        bars.show(Progress("compiling", 1, 3, "programs"))
        outputs[0].updated.clear()
        assert outputs[0].updated.wait(PATIENCE)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "rekindle-progress"]
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("progress", "seconds", "expected"),
    [
        (Progress("downloading", 3 * 10**6, 8 * 10**6), 2.0, "downloading: 3 of 8 MB, 1.5 MB/s, 2 s, about 3 s left"),
        (Progress("downloading", 3 * 10**6), 0.5, "downloading: 3 MB, 0 s"),
        (Progress("compiling", 0, 0, "programs"), 0.0, "compiling: 0 of 0 programs, 0 s"),
    ],
)
def test_a_bar_says_how_much_is_done_in_which_time(progress: Progress, seconds: float, expected: str) -> None:
    assert bar_bundle(progress, seconds)["text/plain"] == expected


def test_a_terminal_shows_which_program_a_token_waits_for_only_while_it_does() -> None:
    pieces, generating = Feed[int](), "generating: 0 tokens"
    one, other = (Progress(f"waiting for a program ({step})", 1, 3, "programs ready") for step in ("one", "other"))
    reports = iter([None, one, one, None, other])
    with contextlib.redirect_stderr(Terminal()) as terminal:
        wait: Any = wait_for_more(pieces, 0, lambda: next(reports))
        assert next(wait).timeout == DELAY_SECONDS
        assert next(wait).timeout == POLL_SECONDS
        assert generating in terminal.getvalue(), "no program is awaited"
        assert next(wait).timeout == POLL_SECONDS
        assert "waiting for a program (one)" in terminal.getvalue().rpartition(generating)[2]
        for _ in range(2):
            next(wait)
        assert generating in terminal.getvalue().rpartition("waiting for a program (one)")[2]
        next(wait)
        pieces.put(0)
        with pytest.raises(StopIteration):
            next(wait)
    *_, before, blank, rest = terminal.getvalue().split("\r")
    assert "waiting for a program (other)" in before
    assert (blank.strip(), rest) == ("", "")
    assert list(wait_for_more(pieces, 0, lambda: one)) == [Wait(pieces, 0, DELAY_SECONDS)], (
        "a token that is there waits for none"
    )


def test_of_waits_for_tokens_one_is_drawn_and_none_in_a_log() -> None:
    with contextlib.redirect_stderr(Terminal()) as terminal:
        first, second = (wait_for_more(Feed(), 0, lambda: None) for _ in range(2))
        for wait in (first, second, first):
            next(wait)
        output = terminal.getvalue()
        assert "generating: 0 tokens" in output
        next(second)
        assert terminal.getvalue() == output
        first.close()
    with contextlib.redirect_stderr(io.StringIO()) as log:
        wait = wait_for_more(Feed(), 0, lambda: None)
        next(wait)
        next(wait)
        wait.close()
    assert log.getvalue() == ""


@pytest.mark.usefixtures("no_handlers")
def test_a_log_hears_once_of_each_program_that_a_long_wait_is_for_and_of_no_short_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = (Progress(f"waiting for a program ({step})", 1, 3, "programs ready") for step in ("one", "other"))
    pieces, reports = Feed[int](), iter([None, one, one, other, None])
    waits: list[Any] = [wait_for_more(pieces, 0, lambda: next(reports)), wait_for_look(Feed(), lambda: one)]
    for wait in waits:
        assert next(wait).timeout == DELAY_SECONDS
    assert capsys.readouterr().err == "", "the waits may be short"
    for _ in range(5):
        next(waits[0])
    pieces.put(0)
    assert list(waits[0]) == []
    assert capsys.readouterr().err.splitlines() == [one.stage, other.stage]


@pytest.mark.usefixtures("no_handlers")
def test_a_long_look_has_a_sign_in_a_log_too(capsys: pytest.CaptureFixture[str]) -> None:
    program = Progress("waiting for a program (a look at up to 64 tokens)", 1, None, "program ready")
    answers, reports = Feed[int](), iter([program, program, None, None])
    wait = wait_for_look(answers, lambda: next(reports))
    for _ in range(5):
        next(wait)
    answers.close()
    assert list(wait) == []
    assert capsys.readouterr().err.splitlines() == [program.stage, "looking into the model"]
    closed = Feed[int]()
    closed.close()
    assert len(list(wait_for_look(closed, lambda: program))) == 1, "outputs that are there have no sign"
    assert capsys.readouterr().err == ""


def test_a_look_in_a_cell_has_a_bar_that_goes_with_it(outputs: list[FakeOutput]) -> None:
    answers = Feed[int]()
    wait = wait_for_look(answers, lambda: None)
    next(wait)
    assert outputs == []
    next(wait)
    assert outputs[0].bundles[0]["text/plain"] == "looking into the model: 0 s"
    answers.close()
    assert list(wait) == []
    assert outputs[0].bundles[-1] == front_end.EMPTY


@pytest.mark.parametrize(("total", "now"), [(4, ' aria-valuenow="25"'), (None, "")])
def test_who_hears_a_page_is_told_of_a_bar_and_how_far_it_is(total: int | None, now: str) -> None:
    html = bar_bundle(Progress("compiling", 1, total, "programs"), 1.0)["text/html"]
    assert f'role="progressbar" aria-label="compiling" aria-valuemin="0" aria-valuemax="100"{now} ' in html


def test_the_rails_of_bars_are_below_each_other() -> None:
    reports = [Progress("a", 1, 2, "things"), Progress("a very long stage " * 3, 10**8, 10**9), Progress("c", 3)]
    grids = {re.search(r"grid-template-columns:[^;]+", bar_bundle(each, 9)["text/html"])[0] for each in reports}  # type: ignore[index]
    assert len(grids) == 1
