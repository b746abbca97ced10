"""A dashboard moves and hears clicks in a real notebook, while cells run and while none does."""

from collections.abc import Iterator
from typing import Any

import pytest

from rekindle.notebook.board.live import PERIOD
from tests.notebook.driver import Notebook
from tests.notebook.stop import assert_usable
from tests.notebook.widgets import VIEW, Widgets
from tests.waiting import PATIENCE

pytestmark = pytest.mark.notebook

THREADS = "[thread for thread in threading.enumerate() if thread.name == 'rekindle-dashboard']"
ENDED = f"for thread in {THREADS}: thread.join({PATIENCE})\nprint({THREADS})"
"""Code to wait for the dashboard's thread, which goes on for an instant after its last message."""
LOOKS = 6


class Front:
    """A front end with a dashboard in its last cell, and no other outputs."""

    def __init__(self, notebook: Notebook, code: str):
        self.notebook = notebook
        self.widgets = Widgets(notebook)
        notebook.client.execute(code)
        self.widgets.read_until(lambda: len(self.widgets.outputs) == 2)
        self._snapshot, self._buttons = self.widgets.outputs
        self.root: str = self.buttons[VIEW]["model_id"]
        (self.face,) = [child.removeprefix("IPY_MODEL_") for child in self.widgets.states[self.root]["children"]]

    @property
    def snapshot(self) -> dict[str, Any]:
        """The dashboard's snapshot, by MIME type."""
        return self.widgets.outputs[self._snapshot]

    @property
    def buttons(self) -> dict[str, Any]:
        """The output of the dashboard's buttons, by MIME type."""
        return self.widgets.outputs[self._buttons]

    def offers(self, words: str) -> bool:
        """Return True if there is a button with these words."""
        return f">{words}</button>" in self.widgets.states[self.face]["html"]

    def press(self, name: str) -> None:
        """Press a button."""
        self.widgets.send(self.face, {"press": name})

    def looks(self) -> list[float]:
        """Return the times of changes of the dashboard's numbers."""
        return [when for when, output, _ in self.widgets.updates if output == self._snapshot]

    def buttons_gone(self) -> bool:
        """Return True once the buttons are gone."""
        return VIEW not in self.buttons

    def moves(self) -> None:
        """Return once the dashboard's numbers have changed `LOOKS` times from now on."""
        count = len(self.looks())
        self.widgets.read_until(lambda: len(self.looks()) >= count + LOOKS)


@pytest.fixture
def front(notebook: Notebook) -> Iterator[Front]:
    yield Front(notebook, "board = session.dashboard(); board")
    notebook.run("board.stop()")
    assert notebook.run(f"print({THREADS})") == "[]\n"
    assert_usable(notebook)


def test_its_output_is_html_and_text_and_its_buttons_are_widgets(front: Front) -> None:
    assert set(front.snapshot) == {"text/html", "text/plain"}
    assert set(front.buttons) == {VIEW, "text/plain", "text/html"}
    assert front.snapshot["text/plain"].startswith("/")
    assert "slots        0 of 2 in use, 0 waiting" in front.snapshot["text/plain"]


def test_it_moves_while_a_cell_awaits_blocks_or_has_ended(front: Front) -> None:
    assert 2 <= 1 / PERIOD <= 4
    notebook = front.notebook
    for cell in ("await session.generate(token_ids=PROMPT, **LONG)", "session.generate_sync(token_ids=PROMPT, **LONG)"):
        running = notebook.start(cell)
        front.moves()
        assert running.interrupt()[0].error
    notebook.run("handle = session.submit(token_ids=PROMPT, **LONG)")
    front.moves()
    notebook.run("handle.cancel()")


def test_a_click_pauses_the_engine_and_another_resumes_it(front: Front) -> None:
    for words, paused in (("Resume", True), ("Pause", False)):
        front.press("toggle")
        front.widgets.read_until(lambda: front.offers(words))  # noqa: B023
        assert front.notebook.run("print(session.paused)") == f"{paused}\n"


def test_a_click_cancels_a_request(front: Front) -> None:
    notebook = front.notebook
    notebook.client.execute("handle = session.submit(token_ids=PROMPT, **LONG); number = max(session.requests)")
    front.widgets.read_until(lambda: front.offers("Pause") and "Cancel" in front.widgets.states[front.face]["html"])
    number = notebook.run("print(number)").strip()
    assert front.offers(f"Cancel {number}")
    front.press(number)
    front.widgets.read_until(lambda: not front.offers(f"Cancel {number}"))
    assert "cancelled" in notebook.run("print(handle)")


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param("", id="idle", marks=pytest.mark.wide),
        pytest.param("await asyncio.sleep(0.5)", id="awaits", marks=pytest.mark.wide),
        pytest.param("time.sleep(0.5)", id="blocks"),
    ],
)
def test_it_stops_when_its_output_is_closed_and_leaves_no_widget(cell: str, front: Front) -> None:
    widgets = front.widgets
    front.notebook.client.execute(cell)
    widgets.change(front.root, _view_count=1)
    widgets.read_until(lambda: widgets.states[front.face]["_view_count"] == 1)
    front.notebook.client.execute(cell)
    widgets.change(front.face, _view_count=0)
    widgets.read_until(front.buttons_gone)
    assert "running when the dashboard stopped" in front.snapshot["text/html"]
    widgets.read_until(lambda: not widgets.states)
    assert front.notebook.run(ENDED) == "[]\n"


def test_it_ends_with_its_session_and_says_so(notebook: Notebook) -> None:
    notebook.run("from rekindle.testing import fake_session; other = fake_session()")
    front = Front(notebook, "other.dashboard()")
    notebook.client.execute("await other.close()")
    front.widgets.read_until(front.buttons_gone)
    assert front.snapshot["text/plain"].startswith("fake (int): closed")
    assert notebook.run(ENDED) == "[]\n"


@pytest.mark.wide
def test_a_kernel_ends_with_a_dashboard_that_moves(fresh: Notebook) -> None:
    fresh.run("from rekindle.testing import fake_session; other = fake_session()")
    Front(fresh, "other.dashboard()")
    fresh.run("handle = other.submit(token_ids=[3], max_tokens=4000)")
    fresh.shutdown()
    assert fresh.log() == ""
