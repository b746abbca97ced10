"""Progress is drawn as bars on a terminal, and as a few lines in a pipe."""

import contextlib
import io
import multiprocessing
import sys
import threading
import types

import pytest

from rekindle.concurrency.progress import Progress
from rekindle.notebook import progress_bars as faces
from rekindle.notebook.progress_bars import ProgressBars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(*reports: Progress) -> None:
    with ProgressBars(True) as bars:
        for report in reports:
            bars.show(report)


def drawn(*reports: Progress) -> str:
    """Return the text that a terminal is sent."""
    with contextlib.redirect_stderr(Terminal()) as terminal:
        draw(*reports)
    return terminal.getvalue()


def test_a_pipe_gets_a_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    draw(*(Progress("loading weights", done, 300, "tensors") for done in range(301)), Progress("compiling", 0, 4, "p"))
    assert capsys.readouterr().err == "loading weights\ncompiling\n"


def test_a_pipe_hears_of_long_stages_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr(faces, "monotonic", lambda: float(next(now)))
    draw(*(Progress("downloading", done * 10**6, 8 * 10**6) for done in range(9)))
    assert capsys.readouterr().err.splitlines() == [
        "downloading",
        "downloading: 3 of 8 MB, 12 s",
        "downloading: 7 of 8 MB, 24 s",
        "downloading: 8 of 8 MB, 27 s",
    ]


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    text = drawn(Progress("compiling", 0, 4, "programs"), Progress("compiling", 4, 4, "programs"))
    assert text.endswith("4/4 programs, 00:00\n")


def test_a_bar_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stage = "downloading a model with a long name (from a place with a long name too, which matters less)"
    text = drawn(Progress(stage, 1, 10**8), Progress(stage, 10**8, 10**8))
    assert max(len(line) for line in text.replace("\r", "\n").splitlines()) <= 76
    assert "a long name: 100%|" in text


def test_a_stage_that_others_replace_leaves_no_line_and_does_not_come_back() -> None:
    text = drawn(
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
    drawn(Progress("compiling", 0, 4))
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_a_widget_gets_few_words_and_a_clock_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed = threading.Event()

    class Widget:
        n = 0

        def __init__(self, desc: str, total: int, **options: object):
            self.desc, self.total = desc, total
            widgets.append(self)

        def update(self, n: int) -> None:
            pass

        def refresh(self) -> None:
            refreshed.set()

        def close(self) -> None:
            pass

    widgets: list[Widget] = []
    monkeypatch.setattr(faces, "_widget_class", lambda: Widget)
    with ProgressBars(True) as bars:
        bars.show(Progress("downloading a model (from a place with a long name)", 0, 4))
        assert refreshed.wait(30)
    assert [widget.desc for widget in widgets] == ["downloading a model"]


def test_a_kernel_without_ipywidgets_gets_lines_and_no_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = types.ModuleType("IPython")
    shell.get_ipython = lambda: None  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith("tqdm.") and "note" in name]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in {"ipykernel.zmqshell": shell, "IPython": shell, "ipywidgets": None}.items():
        monkeypatch.setitem(sys.modules, name, module)
    faces._widget_class.cache_clear()
    try:
        draw(Progress("compiling", 0, 4))
    finally:
        faces._widget_class.cache_clear()
        sys.modules.pop("tqdm.autonotebook", None)
    assert capsys.readouterr().err == "compiling\n"
