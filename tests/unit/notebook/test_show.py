"""A shown request is drawn as it comes, at bounded times, and always as it has ended."""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from rekindle import markup
from rekindle.client.handle import Handle
from rekindle.client.submission import Submission
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import EngineFailed, RequestCancelled, SessionClosed
from rekindle.core.messages import Started, Text
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.tokens import EndReason
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.notebook import front_end, live_text
from rekindle.notebook.front_end import EMPTY
from rekindle.notebook.live_text import PrintedText, draw_record
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import until, until_blocking

VIEW = "application/vnd.jupyter.widget-view+json"
ENDLESS = 4000


@dataclass
class Kernel:
    """A kernel with the one attribute known to the package."""

    shell_channel_thread: object = None


class Widget:
    """A stand-in for each of a button's three widgets."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Button(Widget):
    def __init__(self, press: Callable[[], None]):
        self.press = press
        self.layout, self.style = Widget(), Widget()

    def get_view_spec(self) -> dict[str, int]:
        return {"model_id": id(self)}


class Page:
    """A front end's page.

    Attributes:
        drawings: all displays and updates, as a feed to wait on.
        outputs: the current content of each output, by display id.
        buttons: all buttons, in order.
        when_drawn: called whenever an output is drawn.
    """

    def __init__(self) -> None:
        self.drawings: Feed[Mapping[str, object]] = Feed()
        self.outputs: dict[str, Mapping[str, object]] = {}
        self.buttons: list[Button] = []
        self.when_drawn: Callable[[], object] = lambda: None

    def display(self, bundle: Mapping[str, object], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw
        assert update == (display_id in self.outputs)
        self.outputs[display_id] = bundle
        self.drawings.put(bundle)
        self.when_drawn()

    def button(self, stop: Callable[[], None]) -> Button:
        self.buttons.append(Button(stop))
        return self.buttons[-1]

    @property
    def stop(self) -> Mapping[str, object]:
        """The first output, with the means to stop the request."""
        return next(iter(self.outputs.values()))

    @property
    def card(self) -> Mapping[str, object]:
        return list(self.outputs.values())[-1]

    async def shows(self, text: str) -> None:
        """Wait until the card says this."""
        await until(lambda: self.outputs and text in str(self.card["text/plain"]), f"the card says {text!r}")

    async def is_static(self) -> None:
        """Wait until no output has the means to stop a request."""
        await until(lambda: not self.stops, "no output has the means to stop a request")

    def is_static_blocking(self) -> None:
        """Wait as `is_static` does."""
        until_blocking(lambda: not self.stops, "no output has the means to stop a request")

    @property
    def stops(self) -> list[object]:
        return [output for output in tuple(self.outputs.values()) if "To stop it" in str(output["text/plain"])]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Make the page of the newest kind of kernel. Check its end, when no request on it can be stopped any more."""
    page = Page()
    monkeypatch.setattr("IPython.display.display", page.display)
    monkeypatch.setattr(front_end, "kernel", lambda: Kernel(shell_channel_thread=object()))
    monkeypatch.setattr(front_end, "_button", page.button)
    yield page
    page.is_static_blocking()


@pytest.fixture
def held_session(settler: FakeSettler, byte_tokenizer: Tokenizer) -> Iterator[Session]:
    """Open a session with text; it says nothing before the settler is released."""
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer, settler=settler)) as session:
        yield session


def step(settler: FakeSettler, ticks: int) -> None:
    for _ in range(ticks):
        settler.step()


# The times of drawing


class Simulated:
    """A request with pieces at given times, a clock advanced by waits alone, and a screen with a record of times."""

    seconds = 0.06

    def __init__(self, times: list[float], end: float):
        self.pieces: Feed[Any] = Feed()
        self.drawings: list[tuple[float, int]] = []
        self.closed: list[tuple[float, int]] = []
        self._now = 0.0
        self._coming = sorted(times)
        self._end = end

    def draw(self) -> None:
        self.drawings.append((self._now, len(self.pieces.items)))

    def close(self) -> None:
        self.closed.append((self._now, len(self.pieces.items)))

    def run(self) -> None:
        wait: Any
        for wait in draw_record(self, self):  # type: ignore[arg-type]
            assert wait.timeout is not None
            deadline = self._now + wait.timeout
            while not self.pieces.closed and len(self.pieces.items) <= wait.count:
                following = self._coming[0] if self._coming else self._end
                if following > deadline:
                    self._now = deadline
                    break
                self._now = max(self._now, following)
                if self._coming:
                    self.pieces.put(self._coming.pop(0))
                else:
                    self.pieces.close()


@given(st.lists(st.floats(0, 3), max_size=200), st.floats(3, 4))
def test_it_is_drawn_at_most_twenty_times_a_second_never_late_and_once_more_when_it_has_ended(
    times: list[float], end: float
) -> None:
    simulated = Simulated(times, end)
    simulated.run()
    at = [time for time, _ in simulated.drawings]
    assert all(after - before >= 0.05 for before, after in pairwise(at))
    for time in times:
        assert any(time <= drawing <= time + 0.0601 for drawing in (*at, end)), "it was drawn late"
    assert simulated.closed == [(end, len(times))]
    assert len(at) <= len(times) + end / live_text.POLL_SECONDS + 1, "drawn without a reason"


def test_an_output_is_sent_nothing_that_it_shows_already(page: Page) -> None:
    output = front_end.CellOutput()
    for text in ("one", "one", "two", "two", "one"):
        output.draw({"text/plain": text})
    assert [bundle["text/plain"] for bundle in page.drawings.items] == ["one", "two", "one"]
    assert len(page.outputs) == 1


CELL: ContextVar[str] = ContextVar("CELL")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("version", "by_a_thread"), [((6, 17, 1), "no cell"), ((7, 0, 1), "the first"), ((7, 4, 0), "no cell")]
)
async def test_a_thread_draws_in_the_context_of_its_cell_where_nothing_is_drawn_without(
    version: tuple[int, ...],
    by_a_thread: str,
    held_session: Session,
    settler: FakeSettler,
    page: Page,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let the kernel use the running cell on all other versions."""
    monkeypatch.setattr("ipykernel.version_info", version)
    drawn_by: list[tuple[str, str]] = []

    def display(bundle: Mapping[str, object], *, raw: bool, display_id: str, update: bool) -> None:
        drawn_by.append((threading.current_thread().name, CELL.get("no cell")))
        page.display(bundle, raw=raw, display_id=display_id, update=update)

    monkeypatch.setattr("IPython.display.display", display)
    CELL.set("the first")
    handle = held_session.submit("AB", max_tokens=4)
    handle.display()
    CELL.set("a later one")
    settler.release()
    await page.shows("[ended")
    threads = {cell for name, cell in drawn_by if name == "rekindle-display"}
    assert (threads, drawn_by[0][1]) == ({by_a_thread}, "the first")


# The text that is shown


def piece(text: str, end: EndReason | None = None) -> Text:
    return Text(0, text, (7,), end)


def handle_of(*messages: Text) -> Handle:
    """Make the handle of a request with these messages."""
    handle = Handle(0, Submission((1,), SamplingParams()), lambda _: None)
    handle.send()
    handle.record.deliver(Started(0, (1, 2), None, CachedTokens()))
    for message in messages:
        handle.record.deliver(message)
    return handle


@pytest.mark.anyio
async def test_show_leaves_what_a_cell_shows_of_the_generation(texts: Session, page: Page) -> None:
    await texts.show("AB", max_tokens=40, logprobs=2)
    assert not page.stops
    alone = await texts.generate("AB", max_tokens=40, logprobs=2)
    assert text_of(page.card) == alone.text
    handle = texts.submit("AB", max_tokens=40, logprobs=2)
    handle.display()
    generation = await handle
    await page.is_static()
    assert page.card == generation._repr_mimebundle_()
    assert "the less likely the token" in str(page.card["text/html"])


def text_of(card: Mapping[str, object]) -> str:
    """Return the generated text, above the line of its end."""
    text, _, ending = str(card["text/plain"]).rpartition("\n[")
    assert ending.startswith("ended: length, 40 tokens, in the middle of a character; prompt 2 tokens")
    return text


def test_show_sync_leaves_it_too(texts: Session, page: Page) -> None:
    texts.show_sync("AB", max_tokens=40)
    assert not page.stops
    assert text_of(page.card) == texts.generate_sync("AB", max_tokens=40).text


@pytest.mark.anyio
async def test_a_running_request_shows_its_text_so_far_and_a_held_one_that_it_waits(
    held_session: Session, settler: FakeSettler, page: Page
) -> None:
    handle = held_session.submit("AB", max_tokens=ENDLESS)
    handle.display()
    assert " tokens]" in str(page.card["text/plain"])
    assert "waiting" in str(page.card["text/plain"]) or "running" in str(page.card["text/plain"])
    step(settler, 3)
    await handle.record.pieces.wait(2)
    await page.shows("[running, 3 tokens]")
    text = "".join(piece.text for piece in handle.record.pieces.items)
    assert page.card["text/plain"] == f"{text}\n[running, 3 tokens]"
    handle.cancel()
    settler.release()
    await page.shows("[cancelled, ")


def test_of_a_long_text_that_grows_the_end_is_shown(page: Page) -> None:
    handle = handle_of(*(piece(f"word{number:05d} ") for number in range(1000)))
    live_text.display(handle)
    html = str(page.card["text/html"])
    assert "word00999 " in html
    assert f"… {10_000 - markup.TAIL:,} characters before" in html
    assert len(html) < 3 * markup.TAIL
    handle.record.fail(RequestCancelled("enough"))


def test_a_request_that_has_ended_is_drawn_once(page: Page) -> None:
    handle = handle_of(piece("One <b>"), piece(" two", end="length"))
    live_text.display(handle)
    assert list(page.outputs.values()) == [handle.result()._repr_mimebundle_()] == list(page.drawings.items)
    assert page.buttons == []


# Leaving a shown request


@pytest.mark.anyio
@pytest.mark.parametrize("answers", [True, False], ids=["the engine answers at once", "the engine answers later"])
async def test_leaving_show_cancels_and_leaves_what_came(
    answers: bool, held_session: Session, settler: FakeSettler, page: Page
) -> None:
    step(settler, 3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(held_session.show, "AB", max_tokens=ENDLESS))
        await anyio.wait_all_tasks_blocked()
        (handle,) = held_session.requests.values()
        await handle.record.pieces.wait(2)
        if answers:
            settler.release()
        tasks.cancel_scope.cancel()
    settler.release()
    await page.shows("[cancelled, ")
    text = "".join(piece.text for piece in handle.record.pieces.items)
    assert text
    assert str(page.card["text/plain"]).startswith(text)
    await page.is_static()
    with pytest.raises(RequestCancelled):
        await handle


@pytest.mark.parametrize("drawing", range(1, 7))
def test_an_interrupt_while_it_is_drawn_cancels_and_leaves_how_it_ended(
    drawing: int, held_session: Session, settler: FakeSettler, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def display(bundle: Mapping[str, object], *, raw: bool, display_id: str, update: bool) -> None:
        if next(drawings) == drawing:
            settler.release()
            raise KeyboardInterrupt
        settler.step()
        page.display(bundle, raw=raw, display_id=display_id, update=update)

    drawings = count(1)
    monkeypatch.setattr("IPython.display.display", display)
    handles: list[Handle] = []
    monkeypatch.setattr(live_text, "_screen", partial(noted, live_text._screen, handles))
    with pytest.raises(KeyboardInterrupt):
        held_session.show_sync("AB", max_tokens=ENDLESS)
    with pytest.raises(RequestCancelled):
        handles[0].result()
    if drawing > 2:  # an output was there before
        page.is_static_blocking()
        assert "[cancelled, " in str(page.card["text/plain"])


def noted(make: Callable[..., Any], handles: list[Handle], request: Handle, cell: str) -> object:
    handles.append(request)
    return make(request, cell)


@pytest.mark.anyio
async def test_its_button_cancels_and_show_returns(
    held_session: Session, settler: FakeSettler, page: Page, anyio_backend_name: str
) -> None:
    """Expect no button under trio, where a cell blocks the loop of its clicks."""
    buttons = 1 if anyio_backend_name == "asyncio" else 0
    step(settler, 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(held_session.show, "AB", max_tokens=ENDLESS))
        await anyio.wait_all_tasks_blocked()
        assert len(page.buttons) == buttons
        assert (VIEW in page.stop) == bool(buttons)
        (handle,) = held_session.requests.values()
        await handle.record.pieces.wait(0)
        press = page.buttons[0].press if buttons else handle.cancel
        await to_thread.run_sync(press)
        settler.release()
    assert page.card["text/plain"] == handle.record.preview()["text/plain"]
    assert "\n[cancelled, " in str(page.card["text/plain"])
    assert page.stop == EMPTY
    assert all(each.closed and each.layout.closed and each.style.closed for each in page.buttons)


@pytest.mark.anyio
async def test_a_request_that_fails_says_so_and_raises(held_session: Session, settler: FakeSettler, page: Page) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(end, held_session, settler))
        with pytest.raises(SessionClosed):
            await held_session.show("AB", max_tokens=ENDLESS)
    html = str(page.card["text/html"])
    assert re.search(r"\bfailed after [\d,]+ tokens?<", html)
    assert "open another with rekindle.open()" in html
    assert page.stop == EMPTY


async def end(session: Session, settler: FakeSettler) -> None:
    await anyio.wait_all_tasks_blocked()
    settler.release()
    await session.close()


# The button


@pytest.mark.parametrize(
    ("kernel", "show", "button"),
    [
        (Kernel(), "show_sync", False),
        (Kernel(object()), "show_sync", False),
        (Kernel(), "display", True),
        (Kernel(object()), "display", True),
    ],
)
def test_there_is_a_button_where_a_click_is_heard(
    kernel: Kernel,
    show: str,
    button: bool,
    held_session: Session,
    settler: FakeSettler,
    page: Page,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_end, "kernel", lambda: kernel)
    page.when_drawn = settler.release
    if show == "display":
        held_session.submit("AB", max_tokens=100).display()
    else:
        held_session.show_sync("AB", max_tokens=100)
    assert bool(page.buttons) == button
    assert "To stop it, " in str(page.drawings.items[0]["text/plain"])


@pytest.mark.anyio
async def test_an_older_kernel_has_no_button_while_a_cell_awaits(
    held_session: Session, settler: FakeSettler, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end, "kernel", lambda: Kernel())
    page.when_drawn = settler.release
    await held_session.show("AB", max_tokens=10)
    assert "To stop it, " in str(page.drawings.items[0]["text/plain"])
    assert page.buttons == []


def test_without_widgets_there_are_words(monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("IPython.display.display", page.display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    stop = front_end.StopButton(lambda: None, "words", button=True)
    assert page.stop == markup.bundle("words", markup.note("words"))
    stop.close()
    assert page.stop == EMPTY


# Without a notebook


@pytest.mark.anyio
async def test_without_a_notebook_it_is_printed(texts: Session, capsys: pytest.CaptureFixture[str]) -> None:
    expected = await texts.generate("AB", max_tokens=40)
    await texts.show("AB", max_tokens=40)
    one = capsys.readouterr().out
    await to_thread.run_sync(partial(texts.show_sync, "AB", max_tokens=40))
    for printed in (one, capsys.readouterr().out):
        text, _, ending = printed.rpartition("\n[")
        assert text == expected.text
        end = "ended: length, 40 tokens, in the middle of a character; prompt 2 tokens"
        cut = r", cut after 40 tokens: max_tokens= allows more\]\n"
        assert re.fullmatch(rf"{end}(, [a-z ]+ [0-9.]+ m?s){{4}}{cut}", ending)


def test_it_is_printed_piece_by_piece(capsys: pytest.CaptureFixture[str]) -> None:
    handle = handle_of(piece("One"))
    screen = PrintedText(handle.record)
    screen.draw()
    screen.draw()
    assert capsys.readouterr().out == "One"
    handle.record.deliver(piece(" two"))
    screen.draw()
    assert capsys.readouterr().out == " two"
    handle.record.deliver(piece("\n"))
    handle.record.fail(EngineFailed("the device\nis gone"))
    screen.close()
    assert capsys.readouterr().out == "\n\n[failed after 3 tokens: the device\nis gone]\n"


def test_tokens_without_text_are_printed_at_the_end(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.show_sync(token_ids=[3, 1, 4], max_tokens=3)
    ids = session.generate_sync(token_ids=[3, 1, 4], max_tokens=3).token_ids
    text, ending = capsys.readouterr().out.splitlines()
    assert text == f"token ids {ids[0]} {ids[1]} {ids[2]}"
    assert ending.startswith("[ended: length, 3 tokens; prompt 3 tokens, queued ")


def test_a_process_without_standard_output_prints_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    session.show_sync(token_ids=[3, 1, 4], max_tokens=3)
