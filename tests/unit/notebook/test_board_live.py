"""A dashboard follows its engine until one of the two is gone, and sends only changes."""

import gc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import comm
import pytest
from comm.base_comm import BaseComm
from IPython.core.events import EventManager

from rekindle.core.errors import RequestCancelled, SessionClosed
from rekindle.notebook import face, front_end, marimo_cell
from rekindle.notebook.board import live
from rekindle.notebook.board.board import Board, Facts
from rekindle.notebook.board.live import GRACE, Live
from rekindle.notebook.board.panel import BUTTON_AFTER, Panel
from rekindle.notebook.board.rates import Rate
from rekindle.notebook.front_end import VIEW
from rekindle.results.facts.figures import Standing
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_session
from tests.unit.board_facts import EMPTY
from tests.unit.sessions import thread_of
from tests.waiting import PATIENCE

THREAD = "rekindle-dashboard"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def board(**facts: Any) -> Board:
    return Board(replace(EMPTY, **facts), Rate())


def standings(*ids: int, seconds: float = BUTTON_AFTER) -> dict[int, Standing]:
    return {request_id: Standing("running", 3, 1, seconds) for request_id in ids}


# When it stops


class FakeScreen:
    def __init__(self) -> None:
        self.was_viewed = self.viewed = self.closed = False
        self.boards: list[Board] = []
        self.events: list[str] = []

    def show(self, board: Board) -> None:
        self.boards.append(board)

    def close(self) -> None:
        self.events.append("closed")


class Scene:
    """A follower with a stopped clock, on a screen without viewers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.board = board()
        self.screen = FakeScreen()
        panel = cast(Panel, self.screen)
        self.live = Live(lambda: self.board, panel, lambda: self.screen.events.append("left"), lambda: self.now)

    def goes_on(self, after: float = 0.0) -> bool:
        self.now += after
        return self.live.update()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_goes_on_where_no_front_end_counts_views(scene: Scene) -> None:
    assert all(scene.goes_on(after=3600) for _ in range(5))
    assert scene.screen.boards == [scene.board] * 5


def test_it_stops_when_its_output_is_closed_but_not_when_that_is_shown_again_at_once(scene: Scene) -> None:
    scene.screen.was_viewed = scene.screen.viewed = True
    assert scene.goes_on(after=3600)
    scene.screen.viewed = False
    assert scene.goes_on(after=3600)
    assert scene.goes_on(after=GRACE - 0.01)
    scene.screen.viewed = True
    assert scene.goes_on()
    scene.screen.viewed = False
    assert scene.goes_on(after=3600)
    assert scene.goes_on(after=GRACE - 0.01)
    assert not scene.goes_on(after=0.01)


def test_it_stops_when_somebody_closes_its_widgets(scene: Scene) -> None:
    scene.screen.closed = True
    assert not scene.goes_on()


def test_it_stops_with_its_engine_and_shows_that(scene: Scene) -> None:
    scene.board = board(state="closed", has_ended=True)
    assert not scene.goes_on()
    assert scene.screen.boards == [scene.board]


@pytest.mark.parametrize("starts", [True, False], ids=["told", "by itself"])
def test_at_its_end_its_screen_is_left_and_then_closed_and_no_thread_is_there(
    starts: bool, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PERIOD", 0.001)
    scene.board = board(has_ended=not starts)
    scene.live.start()
    if starts:
        for _ in range(2):
            scene.live.stop()
    else:
        scene.live._thread.join()
    assert scene.screen.events == ["left", "closed"]
    assert threads() == []


# The messages to the front end


class RecordingComm(BaseComm):
    """A comm with a record of a kernel's messages."""

    messages: list[tuple[str, Mapping[str, Any]]]

    def publish_msg(
        self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
    ) -> None:
        self.messages.append((msg_type, data or {}))


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Mapping[str, Any]]]:
    recorded: list[tuple[str, Mapping[str, Any]]] = []
    monkeypatch.setattr(RecordingComm, "messages", recorded, raising=False)
    monkeypatch.setattr(comm, "create_comm", RecordingComm)
    return recorded


class FakeSource:
    """An engine with a record of its commands."""

    def __init__(self) -> None:
        self.facts = EMPTY
        self.commands: list[object] = []

    def look(self, at: float) -> Facts:
        return self.facts

    def pause(self) -> None:
        self.commands.append("pause")

    def resume(self) -> None:
        self.commands.append("resume")

    def cancel(self, request_id: int) -> None:
        self.commands.append(request_id)


def buttons(panel: Panel) -> list[str]:
    """Return the texts of the buttons in the page."""
    return re.findall("data-press=[^>]*>([^<]*)<", panel.face.widget.html)


def press(panel: Panel, name: str) -> None:
    """Press a button, as the front end does."""
    panel.face.widget._handle_custom_msg({"press": name}, [])


def views(panel: Panel, count: int) -> None:
    """Tell a panel, as a front end does, how many views it has."""
    panel._root.set_state({"_view_count": count})


def test_only_what_has_changed_is_sent(messages: list[tuple[str, Mapping[str, Any]]]) -> None:
    panel = Panel(FakeSource())
    panel.show(board())
    messages.clear()
    panel.show(board())
    assert messages == []
    panel.show(board(state="paused"))
    assert [key for kind, data in messages for key in data["state"]] == ["html"]
    messages.clear()
    panel.show(board(state="paused", requests=standings(4, seconds=0.0)))
    assert messages == []


def test_the_first_button_pauses_and_then_resumes(messages: list[tuple[str, Mapping[str, Any]]]) -> None:
    source = FakeSource()
    panel = Panel(source)
    for state, words in (("running", "Pause"), ("paused", "Resume")):
        panel.show(board(state=state))
        assert buttons(panel) == [words]
        press(panel, "toggle")
    assert source.commands == ["pause", "resume"]


def test_a_click_after_the_end_says_nothing(messages: list[tuple[str, Mapping[str, Any]]]) -> None:
    class Ended(FakeSource):
        def pause(self) -> None:
            raise SessionClosed("the session is closed")

    press(Panel(Ended()), "toggle")


def test_a_request_has_a_button_from_when_it_is_a_moment_old_until_it_ends(
    messages: list[tuple[str, Mapping[str, Any]]],
) -> None:
    source = FakeSource()
    panel = Panel(source)
    panel.show(board(requests=standings(7, 8) | standings(9, seconds=BUTTON_AFTER - 0.1)))
    assert buttons(panel) == ["Pause", "Cancel 7", "Cancel 8"]
    panel.show(board(requests=standings(8, 9)))
    assert buttons(panel) == ["Pause", "Cancel 8", "Cancel 9"]
    for number in ("8", "7"):  # the second was pressed before its button went, and is heard after
        press(panel, number)
    assert source.commands == [8, 7]


def test_views_are_counted_by_one_widget_as_they_come_and_by_another_as_they_go(
    messages: list[tuple[str, Mapping[str, Any]]],
) -> None:
    """Use two widgets, because a kernel hears only the first message of a widget while a cell awaits."""
    panel = Panel(FakeSource())
    assert (panel._root._view_count, panel.was_viewed, panel.viewed) == (0, False, False)
    views(panel, 1)
    panel.show(board())
    assert (panel.was_viewed, panel.viewed) == (True, True)
    assert panel.face.widget._view_count == 1
    panel.face.widget.set_state({"_view_count": 0})
    assert (panel.was_viewed, panel.viewed) == (True, False)


def test_a_view_that_goes_before_it_was_looked_at_has_been_seen(messages: list[tuple[str, Mapping[str, Any]]]) -> None:
    panel = Panel(FakeSource())
    for count in (1, 0):
        views(panel, count)
    panel.show(board())
    assert (panel.was_viewed, panel.viewed) == (True, False)


def test_a_panel_that_no_front_end_has_shown_keeps_its_widgets_but_not_its_engine(
    messages: list[tuple[str, Mapping[str, Any]]],
) -> None:
    source = FakeSource()
    panel, gone = Panel(source), weakref.ref(source)
    panel.show(board())
    panel.finish(board(has_ended=True))
    panel.close()
    del source
    gc.collect()
    assert not panel.closed
    assert gone() is None
    press(panel, "toggle")  # and acts no more


def test_a_panel_is_closed_with_all_its_widgets_but_only_if_a_front_end_has_spoken_of_it(
    messages: list[tuple[str, Mapping[str, Any]]],
) -> None:
    for viewed in (0, 1):
        messages.clear()
        panel = Panel(FakeSource())
        panel.show(board(requests=standings(7)))
        panel.show(board())
        if viewed:
            views(panel, viewed)
        panel.close()
        counts = [kind for kind, _ in messages]
        assert counts.count("comm_close") == viewed * counts.count("comm_open")
        assert panel.closed == bool(viewed)


# The whole dashboard


class FakeOutput:
    """An output of a cell with a record of its bundles."""

    outputs: list["FakeOutput"]

    def __init__(self) -> None:
        self.bundles: list[Mapping[str, object]] = []
        self.outputs.append(self)

    def draw(self, bundle: Mapping[str, object]) -> None:
        self.bundles.append(bundle)


@pytest.fixture
def cell_outputs(
    messages: list[tuple[str, Mapping[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[FakeOutput]]:
    """Return the outputs of a process that takes itself for a kernel, a snapshot and its buttons in turn."""
    outputs: list[FakeOutput] = []
    monkeypatch.setattr(FakeOutput, "outputs", outputs, raising=False)
    monkeypatch.setattr(front_end, "CellOutput", FakeOutput)
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setattr(live, "PERIOD", 0.001)
    yield outputs
    assert threads() == []


def test_it_is_drawn_as_html_with_buttons_below_and_stays_without_them(
    session: Session, cell_outputs: list[FakeOutput]
) -> None:
    dashboard = session.dashboard()
    assert cell_outputs == []
    dashboard._ipython_display_()
    snapshot, buttons = cell_outputs
    assert set(snapshot.bundles[0]) == {"text/plain", "text/html"}
    assert set(buttons.bundles[0]) == {"text/plain", "text/html", VIEW}
    assert len(threads()) == 1
    for _ in range(2):
        dashboard.stop()
    assert threads() == []
    assert len(cell_outputs) == 2
    assert "running when the dashboard stopped" in str(snapshot.bundles[-1]["text/html"])
    assert snapshot.bundles[-1] == dashboard._repr_mimebundle_()
    assert buttons.bundles[1:] == [front_end.EMPTY]


def test_at_the_end_of_each_cell_its_output_is_how_it_is_then(
    session: Session, cell_outputs: list[FakeOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = cast(Any, EventManager)(None, {"post_run_cell": None})
    monkeypatch.setattr(front_end, "kernel", lambda: SimpleNamespace(shell=SimpleNamespace(events=events)))
    monkeypatch.setattr(live, "PERIOD", 3600.0)
    dashboard = session.dashboard()
    dashboard._ipython_display_()
    session.generate_sync(token_ids=[3, 1, 4], max_tokens=5)
    events.trigger("post_run_cell", None)
    assert "100.0% computed of 3 tokens" in str(cell_outputs[0].bundles[-1]["text/plain"])
    dashboard.stop()
    assert events.callbacks["post_run_cell"] == []


def test_where_there_are_no_widgets_it_is_drawn_once_with_a_note(
    session: Session, cell_outputs: list[FakeOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face, "_kind", Mock(side_effect=ImportError))
    dashboard = session.dashboard()
    for _ in range(2):
        with pytest.raises(NotImplementedError):  # IPython then tries the object's next method
            dashboard._ipython_display_()
    assert "a picture of this moment: install anywidget" in dashboard._repr_mimebundle_()["text/html"]
    assert cell_outputs == []
    dashboard.stop()
    assert "a picture of this moment" not in dashboard._repr_mimebundle_()["text/html"]


def test_in_marimo_without_anywidget_it_is_drawn_once_with_a_note(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(Html=str))
    monkeypatch.setattr(marimo_cell, "context", object)
    monkeypatch.setattr(face, "_kind", Mock(side_effect=ImportError))
    shown = session.dashboard()._display_()
    assert "a picture of this moment: install anywidget" in str(shown)
    assert threads() == []


def test_two_outputs_of_one_have_one_thread_and_both_stay(session: Session, cell_outputs: list[FakeOutput]) -> None:
    dashboard = session.dashboard()
    for _ in range(2):
        dashboard._ipython_display_()
    first, buttons, second, others = cell_outputs
    assert buttons.bundles[0][VIEW] == others.bundles[0][VIEW]
    assert len(threads()) == 1
    dashboard.stop()
    assert first.bundles[-1] == second.bundles[-1]
    assert buttons.bundles[-1] == others.bundles[-1] == front_end.EMPTY


def test_another_one_stops_the_former(session: Session, cell_outputs: list[FakeOutput]) -> None:
    session.dashboard()._ipython_display_()
    former = threads()
    second = session.dashboard()
    assert not former[0].is_alive()
    second._ipython_display_()
    assert len(threads()) == 1
    second.stop()


def test_it_ends_with_its_session(cell_outputs: list[FakeOutput]) -> None:
    session = fake_session()
    dashboard = session.dashboard()
    dashboard._ipython_display_()
    (thread,) = threads()
    session.close_sync()
    thread.join()
    assert "closed" in str(cell_outputs[0].bundles[-1]["text/plain"])
    assert cell_outputs[1].bundles[-1] == front_end.EMPTY
    with pytest.raises(NotImplementedError):
        dashboard._ipython_display_()
    assert "closed" in repr(session.dashboard())


def test_a_session_that_is_dropped_ends_its_engine_and_its_dashboard(cell_outputs: list[FakeOutput]) -> None:
    session = fake_session()
    session.dashboard()._ipython_display_()
    (thread,) = threads()
    host, alive = session._engine.thread, weakref.ref(session)
    del session
    gc.collect()
    assert alive() is None
    host.stopped.wait_blocking(0)
    thread.join()


def test_a_dashboard_that_has_stopped_lets_go_of_the_engine(cell_outputs: list[FakeOutput]) -> None:
    session = fake_session()
    dashboard = session.dashboard()
    dashboard._ipython_display_()
    panel = dashboard._panel
    assert panel is not None
    views(panel, 1)
    engine = thread_of(session)  # which has the loaded engine until it has ended
    session.close_sync()
    for thread in (engine, *threads()):
        thread.join()
    alive = weakref.ref(session._engine.facts)
    del session, panel, engine, thread
    gc.collect()
    assert alive() is None
    assert "closed" in repr(dashboard)


def test_buttons_act_on_the_engine(held_session: Session, settler: FakeSettler, cell_outputs: list[FakeOutput]) -> None:
    handle = held_session.submit(token_ids=[3, 1, 4])  # which does not end by itself, since no tick settles
    dashboard = held_session.dashboard()
    dashboard._ipython_display_()
    assert dashboard._panel is not None
    (number,) = held_session.requests
    press(dashboard._panel, str(number))
    with pytest.raises(RequestCancelled):
        handle.result(timeout=PATIENCE)
    settler.release()
    press(dashboard._panel, "toggle")
    held_session.step_sync()  # the answer to the cancel comes after the pause
    assert held_session.paused
    dashboard.stop()


SCRIPT = """
import sys
from rekindle.testing import fake_session
with fake_session() as session:
    before = set(sys.modules)
    dashboard = session.dashboard()
    print(dashboard)
    print([name for name in set(sys.modules) - before if name.startswith(("ipywidgets", "IPython", "ipykernel"))])
    dashboard.stop()
"""


@pytest.mark.wide
def test_in_a_script_it_is_a_table_of_text_and_imports_no_widgets() -> None:
    lines = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines[0] == "fake (int): running"
    assert lines[1] == "slots        0 of 32 in use, 0 waiting"
    assert lines[-1] == "[]"
