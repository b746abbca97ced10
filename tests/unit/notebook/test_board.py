"""Every number of the dashboard is the engine's, in its text and in its HTML."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest

from rekindle.assembly.stats import prompt_sources
from rekindle.core.errors import EngineFailed
from rekindle.core.messages import Message
from rekindle.markup import visible
from rekindle.notebook.board.board import Board, Facts, age, pages
from rekindle.notebook.board.board_html import MARKS, board_html, overview_html, requests_html
from rekindle.notebook.board.rates import Rate
from rekindle.session.engine_view import LISTED, EngineView
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.compilations import programs_of
from tests.unit.board_facts import COUNTS, EMPTY, FACTS
from tests.unit.cards import HOSTILE, SPELLED, Page
from tests.waiting import until_blocking

BOARD = Board(FACTS, Rate(now=148.25, mean=120.5, seconds=60.3, history=(100.0, 200.0)))


def test_the_card_has_all_parts_and_a_mark_in_the_colour_of_its_state() -> None:
    assert f"{overview_html(BOARD)}{requests_html(BOARD)}" in board_html(BOARD)
    paused = Board(replace(FACTS, state="paused"), BOARD.rate)
    for state, board in (("running", BOARD), ("paused", paused)):
        assert f"rgb({MARKS[state]})" in board_html(board)
    assert requests_html(Board(EMPTY, Rate())) == ""


def test_pages_of_the_device_are_all_pages_and_found_tokens_all_tokens() -> None:
    here = pages(COUNTS)
    assert sum(here[name] for name in ("in use", "cached", "empty")) == COUNTS.pages
    assert here["cached"] + here["empty"] == COUNTS.free_pages
    assert sum(prompt_sources(COUNTS).values()) == COUNTS.prompt_tokens


def test_what_comes_from_elsewhere_is_text() -> None:
    facts = replace(FACTS, name=HOSTILE, state=f"failed: {HOSTILE}", dtype=HOSTILE)
    html = board_html(Board(facts, Rate()))
    assert html.count(visible(HOSTILE)) == 3
    assert HOSTILE not in html.replace(visible(HOSTILE), "")
    assert Page(html).text.count(SPELLED) == 3


def test_a_long_reason_why_the_engine_failed_is_cut_and_breaks_anywhere() -> None:
    board = Board(replace(EMPTY, state=f"failed: {'x' * 1000}\n\nand more", has_ended=True), Rate())
    html = board_html(board)
    assert html.count("x" * 300) == 1
    assert html.count("x" * 400) == 0
    assert "nowrap" not in html[: html.index("failed: ")]
    assert "overflow-wrap:anywhere" in html[: html.index("failed: ")]
    assert len(str(board).splitlines()[0]) < 450


def test_an_age_does_not_flicker() -> None:
    ages = [age(seconds) for seconds in (0.0, 9.94, 12.7, 119.4, 600.0)]
    assert ages == ["0.0 s", "9.9 s", "13 s", "119 s", "10 min"]


# The facts that an engine tells


@pytest.fixture
def busy(settler: FakeSettler) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_running=2), settler=settler)) as session:
        yield session


def facts_of(session: Session, at: float = 0.0) -> Facts:
    return EngineView(session._engine, "fake").look(at)


def test_the_facts_are_those_of_the_session(busy: Session) -> None:
    busy.pause_sync()  # or the engine would go on between the two looks at it
    handles = [busy.submit(token_ids=[3, 1, 4], max_tokens=5) for _ in range(11)]
    for _ in range(2 * len(handles)):  # each is taken in, and then joins the others
        busy.step_sync()
    facts = facts_of(busy)
    assert facts.slots == 2
    assert list(facts.requests) == list(busy.requests)[:LISTED]
    assert (len(facts.requests), facts.more) == (LISTED, 3)
    assert facts.stats == busy.stats
    assert [now.state for now in facts.requests.values()] == ["running", *["waiting"] * (LISTED - 1)]
    handles[0].cancel()
    assert facts_of(busy).requests[0].state == "cancelling"


def test_a_request_is_listed_with_what_it_has_got(held_session: Session, settler: FakeSettler) -> None:
    stream = held_session.stream_sync(token_ids=[3, 1, 4], max_tokens=4000)
    for _ in range(10):
        settler.step()
    got = [token for _ in range(5) for token in next(stream).token_ids]
    (now,) = facts_of(held_session).requests.values()
    assert (now.state, now.prompt_tokens) == ("running", 3)
    assert len(got) <= now.generated <= 10
    assert now.seconds > 0


def test_first_tokens_are_those_of_the_last_minute(session: Session) -> None:
    session._engine.client.first_tokens.extend((when, when / 100) for when in (10.0, 39.0, 41.0, 99.0))
    assert facts_of(session, at=100.0).first_tokens == (0.41, 0.99)


def test_first_tokens_count_as_soon_as_they_have_come_and_once(busy: Session, settler: FakeSettler) -> None:
    streams = [busy.stream_sync(token_ids=[3, 1, 4], max_tokens=500) for _ in range(2)]
    assert facts_of(busy, perf_counter()).first_tokens == ()

    def have_first_tokens() -> bool:
        settler.step()
        return all(handle.record.pieces.wait_blocking(0, 0.02) for handle in busy.requests.values())

    until_blocking(have_first_tokens, "both have a first token")
    assert all(next(stream).token_ids for stream in streams)
    assert len(busy.requests) == 2
    until_blocking(  # it is noted just after the token is told
        lambda: len(facts_of(busy, perf_counter()).first_tokens) == 2, "the first tokens are noted"
    )
    settler.release()
    assert all(list(stream) for stream in streams)
    assert len(facts_of(busy, perf_counter()).first_tokens) == 2


def test_programs_that_are_ready_are_counted() -> None:
    futures: list[Future[Any]] = [Future() for _ in range(4)]
    futures[0].set_result(None)
    futures[1].set_exception(MemoryError())
    futures[2].cancel()
    loaded_engine = fake_loaded_engine(fake_limits())
    loaded_engine = replace(loaded_engine, programs=replace(programs_of(loaded_engine), preparing=futures))
    with fake_session(loaded_engine) as session:
        facts = facts_of(session)
        assert (facts.ready_programs, facts.total_programs) == (1, 4)


def test_a_board_says_whether_the_engine_runs() -> None:
    session = fake_session()
    assert facts_of(session).state == "running"
    session.pause_sync()
    assert facts_of(session).state == "paused"
    session.close_sync()
    facts = facts_of(session)
    assert (facts.state, facts.has_ended) == ("closed", True)


def test_a_board_says_why_the_engine_failed() -> None:
    class Broken(FakeSettler):
        async def handle(self, message: Message) -> list[Message]:
            raise RuntimeError("no more <b>")

    with fake_session(fake_loaded_engine(fake_limits(), settler=Broken())) as session:
        with pytest.raises(EngineFailed):
            session.generate_sync(token_ids=[3], max_tokens=2)
        facts = facts_of(session)
        assert facts.state.startswith("failed: the engine stopped because of RuntimeError: no more <b>")
        assert facts.has_ended


def test_cached_pages_that_nobody_uses_are_among_the_free_ones(session: Session) -> None:
    session.generate_sync(token_ids=[3] * 200, max_tokens=5)
    stats = session.stats.scheduler
    assert 0 < stats.evictable_pages == stats.cached_pages < stats.free_pages == stats.pages
    with session.prefix_sync(token_ids=[3] * 200):
        assert session.stats.scheduler.evictable_pages < stats.evictable_pages
        assert pages(session.stats.scheduler)["in use"] > 0


def test_a_session_and_its_dashboard_say_the_same_of_free_pages(session: Session) -> None:
    session.generate_sync(token_ids=[3] * 200, max_tokens=5)
    stats = session.stats.scheduler
    assert f"{stats.pages:,} of {stats.pages:,} pages free, {stats.cached_pages} of them cached>" in repr(session)
    assert f"{stats.pages:,} of {stats.pages:,} free, {stats.cached_pages} of them cached;" in str(session.dashboard())
    card = " ".join(Page(session._repr_mimebundle_()["text/html"]).text.split())
    assert f"pages free {stats.pages:,} of {stats.pages:,}, {stats.cached_pages} of them cached" in card
