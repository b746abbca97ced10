"""Widgets are shown in Colab, and every widget has words for a page that cannot show it."""

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.notebook import colab, front_end
from rekindle.notebook.colab import ENABLED
from rekindle.notebook.front_end import VIEW
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session


class Output:
    """An output of a cell with a record of its bundles."""

    bundles: list[Mapping[str, object]]

    def draw(self, bundle: Mapping[str, object]) -> None:
        self.bundles.append(bundle)


@pytest.fixture
def bundles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Mapping[str, object]]]:
    """Return the drawings of a process that takes itself for a kernel."""
    drawn: list[Mapping[str, object]] = []
    monkeypatch.setattr(Output, "bundles", drawn, raising=False)
    monkeypatch.setattr(front_end, "CellOutput", Output)
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    colab._enable.cache_clear()
    yield drawn
    colab._enable.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make `google.colab` importable, and return the calls of its function."""
    made: list[str] = []
    google, package, output = map(ModuleType, ("google", "google.colab", "google.colab.output"))
    package.output, google.colab = output, package  # type: ignore[attr-defined]
    output.enable_custom_widget_manager = lambda: made.append("enabled")  # type: ignore[attr-defined]
    for module in (google, package):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


@pytest.fixture
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    tokenizer = Tokenizer(byte_tokenizer.backend, chat_template=template)
    with fake_session(fake_loaded_engine(fake_limits(page_size=16), tokenizer=tokenizer)) as session:
        yield session


def dashboard(session: Session) -> None:
    board = session.dashboard()
    board._ipython_display_()
    board.stop()


def explorer(session: Session) -> None:
    explorer = session.explore(session.generate_sync("AB", max_tokens=4, logprobs=2))
    explorer._ipython_display_()
    explorer.close()


def chat(session: Session) -> None:
    widget = session.chat().widget()
    widget._ipython_display_()
    widget.close()


WIDGETS = pytest.mark.parametrize("show", [dashboard, explorer, chat])


def lines(bundles: list[Mapping[str, object]]) -> list[object]:
    """Return the lines about Colab."""
    return [bundle["text/plain"] for bundle in bundles if "Colab" in str(bundle["text/plain"])]


@WIDGETS
def test_the_first_widget_in_colab_enables_its_manager_and_says_so_once(
    show: Callable[[Session], None], session: Session, bundles: list[Mapping[str, object]], calls: list[str]
) -> None:
    show(session)
    assert (calls, lines(bundles)) == (["enabled"], [ENABLED])
    assert bundles[0]["text/plain"] == ENABLED, "before the display of the widget"
    for again in (dashboard, explorer, chat):
        again(session)
    assert (calls, lines(bundles)) == (["enabled"], [ENABLED])


@pytest.mark.parametrize("place", ["no google.colab", "Kaggle", "no kernel"])
def test_other_notebooks_are_left_alone(
    place: str,
    session: Session,
    bundles: list[Mapping[str, object]],
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if place == "Kaggle":
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    elif place == "no kernel":
        monkeypatch.setattr(front_end, "kernel", lambda: None)
        colab.enable_widgets()
    else:
        monkeypatch.setitem(sys.modules, "google.colab", None)
    if place != "no kernel":
        dashboard(session)
    assert (calls, lines(bundles)) == ([], [])


def test_a_manager_that_cannot_be_enabled_leaves_the_cell_its_outputs(
    session: Session, bundles: list[Mapping[str, object]], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise ValueError("Unknown widgets version: 5.0.0a")

    monkeypatch.setattr("google.colab.output.enable_custom_widget_manager", fails)
    dashboard(session)
    (line,) = lines(bundles)
    assert str(line).endswith("so widgets may be missing: Unknown widgets version: 5.0.0a")
    assert any(VIEW in bundle for bundle in bundles)


def table(session: Session) -> None:
    session.show_sync(["AB", "CD"], max_tokens=4)


def stop_button(session: Session) -> None:
    front_end.StopButton(lambda: None, "To stop it, interrupt the kernel.", button=True).close()


@pytest.mark.parametrize("show", [dashboard, explorer, chat, table, stop_button])
def test_a_page_without_widgets_has_words_in_their_place(
    show: Callable[[Session], None],
    session: Session,
    bundles: list[Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rekindle.notebook.live_table.handles_clicks", lambda *_: True)
    show(session)
    widgets = [bundle for bundle in bundles if VIEW in bundle]
    assert widgets, "there was a widget"
    for bundle in widgets:
        assert bundle["text/plain"].strip()
        assert bundle["text/html"].strip()
