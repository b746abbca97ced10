"""A timeline says what the scheduler did in every tick, to every request, and it adds up to the scheduler's counts."""

import random
import re
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any, get_args
from xml.etree import ElementTree

import anyio
import pytest

from rekindle.engine.handled import Handled
from rekindle.errors import ConfigError, RekindleError
from rekindle.messages import Plan
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.scheduler.scheduler import Scheduler
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_assembly, fake_limits, fake_session
from rekindle.views.drawing import CHARACTER, WIDTH
from rekindle.views.records import Begun, Cut, Fact, Given, Joined, Over, Part, Planned, Seen
from rekindle.views.timeline.courses import Kind, Timeline
from rekindle.views.timeline.drawing import BAR_HEIGHT, draw
from rekindle.views.timeline.view import MAX_COLUMNS, MAX_ROWS, view
from rekindle.views.timeline.words import LETTERS, MEANT, SUMMARY_HEAD, facts
from rekindle.views.trace import Trace
from tests.unit.test_markup import DRAWN, HOSTILE, SPELLED, read

pytestmark = pytest.mark.anyio

PROMPT = [3, 1, 4]
TIGHT = {"page_size": 16, "num_pages": 6, "max_running": 4}


def timeline_of(trace: Trace) -> Timeline:
    return Timeline(trace.handled)


def kinds_of(timeline: Timeline) -> dict[int, dict[int, Kind | None]]:
    """Return what each request did, by tick."""
    ticks = list(timeline.ticks)
    return {name: dict(zip(ticks, course.kinds(ticks), strict=True)) for name, course in timeline.courses.items()}


def row(text: str, name: str) -> str:
    """Return the letters of one line of a drawing."""
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("tick "))
    (line,) = [line for line in lines if re.match(rf"{name}\b", line)]
    return line[re.search(r"\d", head).start() : head.index(SUMMARY_HEAD)].strip()  # type: ignore[union-attr]


class Truth:
    """A record of the scheduler, which is asked right after each message that it handled.

    Attributes:
        plans: all plans that it made.
        waiting: by the tick of the last plan after each message, the requests that waited then.
    """

    def __init__(self, session: Session):
        scheduler = session._assembly.actors.scheduler
        assert isinstance(scheduler, Scheduler)
        self._scheduler = scheduler
        self.plans: list[Plan] = []
        self.waiting: dict[int, set[int]] = {}

    def see(self, handled: Handled) -> None:
        plans = [said for said in handled.said if isinstance(said, Plan)]
        self.plans += plans
        if plans:
            # Requests that no plan told of lost their pages after the last plan.
            waiting = {tracked.request.id for tracked in self._scheduler.roster.waiting}
            self.waiting[plans[-1].tick] = waiting - set(self._scheduler.roster.groups[0].running.preempted)


# Groups of devices


@pytest.mark.parametrize("data", [1, 2])
async def test_a_request_is_named_with_its_group_where_there_are_several(data: int) -> None:
    with fake_session(page_size=16, num_pages=9, max_running=2, data=data) as session, session.trace() as trace:
        await session.pause()  # so that all of them are there before the first has ended
        asked = [session.submit(token_ids=[token] * 9, max_tokens=50) for token in range(4)]
        session.resume()
        for handle in asked:
            await handle
    groups = [course.group for course in timeline_of(trace).courses.values()]
    drawn = trace.timeline()
    if data == 1:
        assert groups == [None] * 4
        assert "group" not in drawn.text
    else:
        assert groups.count(0) == groups.count(1) == 2
        assert drawn.text.count(", group 1") == drawn.text.count(", group 0") == 2
        assert ", group 1</text>" in drawn.svg


# Sums


@pytest.mark.parametrize("ticks", ["alternate", "prefill-first", "combined"])
@pytest.mark.parametrize("seed", range(4))
async def test_what_each_tick_did_to_each_request_is_what_the_plans_say(ticks: str, seed: int) -> None:
    draws = random.Random(seed)
    chunk = draws.choice([16, 32])
    with fake_session(
        page_size=16,
        num_pages=draws.randint(6, 12),
        max_running=draws.randint(2, 5),
        ticks=ticks,  # type: ignore[arg-type]
        max_prefill_tokens=chunk * draws.randint(1, 2),
        prefill_chunk=chunk,
        overlap=draws.random() < 0.7,
    ) as session:
        truth = Truth(session)
        with session.watch(truth.see), session.trace() as trace:
            capacity = session._assembly.limits.max_context
            lengths = [draws.randint(1, min(60, capacity - 1)) for _ in range(8)]
            asked = [session.submit(token_ids=[draws.randint(1, 3)] * n, max_tokens=50) for n in lengths]
            for handle in asked:
                await handle
        stats = session.stats.scheduler
    timeline, kinds = timeline_of(trace), kinds_of(timeline_of(trace))
    courses = timeline.courses
    assert list(timeline.ticks) == [plan.tick for plan in truth.plans] == list(range(1, stats.ticks + 1))
    for plan in truth.plans:
        of_kind = {name: kinds[name][plan.tick] for name in courses}
        chunks = {chunk.request_id: len(chunk.tokens) for chunk in plan.chunks}
        assert {name for name, kind in of_kind.items() if kind == "prefill"} == set(chunks)
        assert {name: courses[name].cells[plan.tick].tokens for name in chunks} == chunks
        decoded = {name for name, kind in of_kind.items() if kind in {"decode", "surplus"}}
        assert decoded == {each.request_id for each in plan.rows}
    for tick, waiting in truth.waiting.items():
        for name, kind in ((name, of[tick]) for name, of in kinds.items() if tick not in courses[name].cells):
            over = courses[name].last < tick  # it lost its pages while its last token was on its way
            assert (kind in {"queued", "preempted"}) == (name in waiting and not over), (tick, name, kind)
    cells = [cell for course in courses.values() for cell in course.cells.values()]
    assert sum(cell.tokens for cell in cells if cell.prefill) == stats.computed_tokens + stats.recomputed_tokens
    assert sum(cell.given for cell in cells) == stats.generated_tokens
    assert sum(len(course.lost) for course in courses.values()) == stats.preemptions


@pytest.mark.parametrize("ticks", ["alternate", "prefill-first", "combined"])
async def test_a_request_that_lost_its_pages_is_preempted_until_it_has_some_again(ticks: str) -> None:
    with fake_session(ticks=ticks, **TIGHT) as session:  # type: ignore[arg-type]
        with session.trace() as trace:
            await session.generate(token_ids=[[number] * 15 for number in range(8)], max_tokens=60)
        assert session.stats.scheduler.preemptions > 0
    timeline, drawing = timeline_of(trace), trace.timeline()
    lost = [course for course in timeline.courses.values() if course.lost]
    assert lost
    kinds, seen = kinds_of(timeline), 0
    for course in lost:
        for at in course.lost:
            later = [kind for tick, kind in kinds[course.request].items() if tick >= at]
            gap = later.index("prefill")
            assert set(later[:gap]) <= {"preempted"}
            seen += gap
        said = f"lost its pages {len(course.lost)} time"
        assert said in drawing.svg
        assert (
            "x" in row(drawing.text, f"request {course.request}") or "preempted" not in kinds[course.request].values()
        )
    assert seen > 10, "they wait for a while"
    assert "computed again" in drawing.svg


async def test_whoever_looks_meanwhile_sees_who_is_preempted_now() -> None:
    with fake_session(**TIGHT) as session:  # type: ignore[arg-type]
        truth = Truth(session)
        with session.watch(truth.see), session.trace() as trace:
            await session.generate(token_ids=[[number] * 15 for number in range(8)], max_tokens=60)
    records, seen = trace.handled, 0
    planning = [at for at, record in enumerate(records, 1) if any(isinstance(fact, Planned) for fact in record.facts)]
    for at in planning[::9]:
        timeline = Timeline(records[:at])
        tick = max(timeline.ticks)
        for course in timeline.courses.values():
            (kind,) = course.kinds([tick])
            if kind == "preempted":
                assert course.request in truth.waiting[tick]
                seen += 1
    assert seen > 3


# Ends


async def test_each_end_is_at_its_tick_and_surplus_tokens_are_not_its_own(session: Session) -> None:
    expected = expected_tokens(PROMPT, 9)
    with session.trace() as trace:
        await session.generate(token_ids=PROMPT, max_tokens=9, stop_token_ids=[expected[4]])
        await session.generate(token_ids=[9], max_tokens=3)
        with suppress(RekindleError):
            await session.generate("the fake model has no tokenizer")
    stop, length, rejected = (timeline_of(trace).courses[name] for name in range(3))
    assert (stop.how, stop.generated, length.how, length.generated) == ("stop", 5, "length", 3)
    kinds = [kind for kind in kinds_of(timeline_of(trace))[0].values() if kind]
    assert kinds == ["prefill", *["decode"] * 4, "surplus"], "the end is seen a tick late"
    assert stop.last == 5
    assert (rejected.how, rejected.cells) == ("rejected", {})
    text = trace.timeline().text
    assert row(text, "request 0") == "Pdddds"
    assert "3 + 5, stop" in text
    assert text.splitlines()[-1].endswith("rejected")
    assert "\n0 tokens generated" in facts(rejected, timeline_of(trace))


async def test_a_stop_string_ends_a_request_where_the_text_is_complete(texts: Session) -> None:
    whole = await texts.generate("hi", max_tokens=40)
    stop = whole.text[5:7]
    with texts.trace() as trace:
        generation = await texts.generate("hi", max_tokens=40, stop=stop)
        while not any(one.kind == "Stopped" for one in trace.handled):  # the scheduler hears of it after the caller
            await anyio.lowlevel.checkpoint()
        stats = texts.stats.scheduler
    (course,) = timeline_of(trace).courses.values()
    assert (course.how, course.generated) == ("stop", len(generation.token_ids))
    assert course.generated == stats.generated_tokens - 40


def recorded(*facts: Fact) -> list[Seen]:
    """Make a record of each fact, a second after the other."""
    return [Seen("scheduler", "", "", (), None, (), at, at + 0.5, (fact,)) for at, fact in enumerate(facts)]


def test_tokens_after_a_stop_string_are_surplus_though_they_were_given() -> None:
    ticks = [fact for tick in range(2, 6) for fact in (Planned(tick, (), (1,), 0, ()), Given(tick, (1,)))]
    first = (Planned(1, (Part(1, 0, 3, True),), (), 0, ()), Given(1, (1,)))
    records = recorded(Joined(1, 3, False), *first, *ticks, Cut(1, 3), Over(1, "stop", ""), Over(1, "stop", ""))
    timeline = Timeline(records)
    (course,) = timeline.courses.values()
    assert list(course.kinds(list(timeline.ticks))) == ["prefill", "decode", "decode", "surplus", "surplus"]
    assert (course.generated, course.last, course.how) == (3, 3, "stop")


async def test_a_cancelled_request_is_there_until_then_and_its_last_tokens_are_surplus(
    held: Session, settler: FakeSettler
) -> None:
    with held.trace() as trace:
        handle = held.submit(token_ids=PROMPT, max_tokens=9)
        waits = held.submit(token_ids=PROMPT, max_tokens=9)
        await anyio.wait_all_tasks_blocked()
        while held.stats.scheduler.ticks < 2:
            await anyio.lowlevel.checkpoint()
        waits.cancel()
        handle.cancel()
        settler.release()
        for each in (handle, waits):
            with suppress(RekindleError):
                await each
    timeline = timeline_of(trace)
    assert [course.how for course in timeline.courses.values()] == ["cancelled", "cancelled"]
    assert held.stats.scheduler.generated_tokens == sum(course.generated for course in timeline.courses.values())
    kinds = kinds_of(timeline)
    assert kinds[0][1] == "prefill"
    assert set(kinds[1].values()) <= {"queued", None}
    assert "cancelled" in trace.timeline().text


async def test_a_held_prefix_ends_when_it_is_computed_and_what_follows_finds_it(session: Session) -> None:
    document = [7] * 130
    with session.trace() as trace:
        async with session.prefix(token_ids=document) as held:
            await held.generate(token_ids=[1, 2], max_tokens=4)
    prefix, request = timeline_of(trace).courses.values()
    assert (prefix.hold, prefix.how, prefix.prompt) == (True, "held", 130)
    assert sum(cell.tokens for cell in prefix.cells.values()) == 128
    assert (request.cached, next(iter(request.cells.values())).start) == (128, 128)
    text = trace.timeline().text
    assert "prefix 0" in text
    assert "132 (128 cached) + 4, length" in text


async def test_pages_that_are_copied_in_are_of_the_tick_that_uses_them() -> None:
    with fake_session(page_size=16, num_pages=8, max_running=2) as session:
        await session.generate(token_ids=[5] * 64, max_tokens=2)
        for number in range(6, 9):  # until those pages are in the host tier alone
            await session.generate(token_ids=[number] * 80, max_tokens=2)
        with session.trace() as trace:
            found = await session.generate(token_ids=[5] * 64, max_tokens=2)
    assert found.cached.host == 48, "the last page is found, and its last block computed again"
    timeline = timeline_of(trace)
    (course,) = timeline.courses.values()
    assert timeline.ticks[next(iter(course.cells))].onloaded == 4
    assert "copied in" in trace.timeline().svg


async def test_a_prefix_that_is_found_whole_computes_nothing_and_ends_with_the_tick_that_copies_it_in() -> None:
    with fake_session(page_size=16, num_pages=8, max_running=2) as session:
        await session.generate(token_ids=[5] * 64, max_tokens=2)
        for number in range(6, 9):
            await session.generate(token_ids=[number] * 80, max_tokens=2)
        with session.trace() as trace:
            async with session.prefix(token_ids=[5] * 64):
                pass
    timeline = timeline_of(trace)
    (course,) = timeline.courses.values()
    (tick,) = timeline.ticks.values()
    assert (tick.onloaded, tick.chunks, tick.rows) == (4, (), ())
    assert (course.how, course.cells, course.last) == ("held", {}, tick.number)
    assert "1 request over 1 tick" in trace.timeline().text


def test_of_some_of_the_ticks_what_happened_in_the_others_is_known_too() -> None:
    facts = (Joined(1, 3, False), Planned(1, (Part(1, 0, 3, True),), (), 0, ()), Given(1, (1,)))
    waits = [Planned(tick, (), (2,), 0, ()) for tick in range(2, 10)]
    course = Timeline(recorded(*facts, *waits)).courses[1]
    assert list(course.kinds(range(0, 10, 2))) == ["queued", *["idle"] * 4]


# Traces that begin or stop in the middle


async def test_a_trace_that_begins_in_the_middle_shows_what_it_saw(held: Session, settler: FakeSettler) -> None:
    runs = held.submit(token_ids=PROMPT, max_tokens=9)
    waits = held.submit(token_ids=PROMPT, max_tokens=4)
    while (held.stats.scheduler.ticks, held.stats.scheduler.waiting) != (2, 1):
        await anyio.lowlevel.checkpoint()
    with held.trace() as trace:
        settler.release()
        await runs
        await waits
    timeline, kinds = timeline_of(trace), kinds_of(timeline_of(trace))
    assert min(timeline.ticks) > 2
    assert timeline.courses[0].prompt is None
    assert set(kinds[0].values()) <= {"decode", None}
    assert next(iter(kinds[1].values())) == "queued", "it left the waiting queue in the trace, so it was there before"
    drawing, seen = trace.timeline(), timeline.courses[0].generated
    assert 0 < seen < 9
    assert f"? + ≥{seen}, length" in drawing.text
    assert f"at least {seen} tokens generated" in drawing.svg
    assert "3 + 4, length" in drawing.text
    assert "\n4 tokens generated" in drawing.svg


def test_of_one_that_began_before_no_more_tokens_are_said_to_be_its_own_than_are() -> None:
    ticks = [fact for tick in range(2, 6) for fact in (Planned(tick, (), (1,), 0, ()), Given(tick, (1,)))]
    (course,) = Timeline(recorded(*ticks, Cut(1, 3), Over(1, "stop", ""))).courses.values()
    assert (course.joined, course.generated) == (None, 3)


async def test_any_end_of_a_trace_makes_a_timeline(session: Session) -> None:
    """Check also a trace whose oldest messages were dropped."""
    with session.trace() as trace:
        await session.generate(token_ids=[[number] * 20 for number in range(4)], max_tokens=6)
    for first in range(len(trace.handled)):
        drawing = draw(Timeline(trace.handled[first:]))
        read(drawing.svg, DRAWN)
        draw(Timeline(trace.handled[:first]))


# The picture


def test_what_is_to_be_drawn_is_told_by_collections_of_numbers(session: Session) -> None:
    trace: Any = session.trace()
    for wrong in ({"requests": 3}, {"ticks": 3}, {"requests": "3"}):
        with pytest.raises(ConfigError, match=r"must be a collection of numbers, such as .*, got '?3"):
            trace.timeline(**wrong)
    for right in ({"requests": [3]}, {"requests": {3}, "ticks": range(3)}):
        assert "0 requests over 0 ticks" in trace.timeline(**right).text


def test_a_trace_of_nothing_is_a_picture_of_nothing(session: Session) -> None:
    with session.trace() as trace:
        pass
    drawing = trace.timeline()
    assert "0 requests over 0 ticks" in drawing.text
    read(drawing.svg, DRAWN)


async def test_the_picture_is_xml_with_a_row_for_each_request_and_titles_with_facts(session: Session) -> None:
    with session.trace() as trace:
        await session.generate(token_ids=[[1] * 40, [2] * 20], max_tokens=5)
    drawing = trace.timeline()
    read(drawing.svg, DRAWN)
    said = "".join(ElementTree.fromstring(drawing.svg).itertext())
    for words in (
        "request 0",
        "request 1",
        "40 + 5, length",
        "20 + 5, length",
        "prefill, tick",
        "40 tokens, positions",
    ):
        assert words in said
    for words in ("queued for", "first token after", "ended after", "4 ticks from", "token of decode", "longest:"):
        assert words in said
    assert set(drawing._repr_mimebundle_()) == {"text/plain", "text/html"}


@pytest.mark.parametrize("ticks", [5, 99, 100, 403, 2000])
@pytest.mark.parametrize(
    ("prompt", "cached", "how"), [(3, 0, "stop"), (1202, 1152, "cancelled"), (10**6, 10**6, "held")]
)
def test_nothing_that_is_said_is_cut_off_or_touches_another(ticks: int, prompt: int, cached: int, how: str) -> None:
    begin = (
        Joined(54321, prompt, False),
        Begun(54321, prompt, cached),
        Planned(1, (Part(54321, 0, 3, True),), (), 0, ()),
    )
    rest = [
        fact for tick in range(2, ticks + 1) for fact in (Planned(tick, (), (54321,), 0, ()), Given(tick, (54321,)))
    ]
    svg = draw(Timeline(recorded(*begin, *rest, Over(54321, how, "")))).svg
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in ElementTree.fromstring(svg).iterfind("{*}text"):
        left = float(text.attrib["x"])
        lines.setdefault(float(text.attrib["y"]), []).append((left, left + CHARACTER * len(text.text or "")))
    assert f"{prompt} ({cached} cached) + " in svg or not cached
    for line in lines.values():
        assert max(end for _, end in line) <= WIDTH
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(line)))
    (name,) = ElementTree.fromstring(svg).iterfind("{*}g/{*}text[.='request 54321']")
    first = min(float(box.attrib["x"]) for box in ElementTree.fromstring(svg).iterfind("{*}g/{*}rect"))
    assert float(name.attrib["x"]) + CHARACTER * len("request 54321") <= first


def test_a_tick_that_compiles_is_cut_and_leaves_the_others_their_bars() -> None:
    took = [0.5, 0.5, 40.0, 0.25, 0.5]
    facts = [Planned(tick, (), (1,), 0, ()) for tick in range(1, 6)]
    timeline = Timeline(recorded(Joined(1, 3, False), *facts))
    for tick, seconds in zip(timeline.ticks.values(), took, strict=True):
        tick.began, tick.ended = tick.planned, tick.planned + seconds
    svg = draw(timeline).svg
    assert "longest: 40.00 s, cut at 2.50 s" in svg
    bars = [rect for rect in ElementTree.fromstring(svg).iterfind("{*}g/{*}rect") if "fill" in rect.attrib]
    assert [float(bar.attrib["height"]) for bar in bars] == pytest.approx(
        [min(1, seconds / 2.5) * BAR_HEIGHT for seconds in took], abs=0.06
    )
    timeline.ticks[3].ended = timeline.ticks[3].planned + 2.0
    assert "longest: 2.00 s<" in draw(timeline).svg


async def test_what_does_not_fit_is_counted_and_long_runs_share_columns() -> None:
    with fake_session(max_running=16) as session, session.trace() as trace:
        await session.generate(token_ids=[[number] for number in range(MAX_ROWS + 5)], max_tokens=100)
    drawing = trace.timeline()
    assert "5 requests not drawn" in drawing.text
    assert "5 requests not drawn" in drawing.svg
    ticks = len(timeline_of(trace).ticks)
    assert f"a column is {-(-ticks // MAX_COLUMNS)} ticks" in drawing.text
    assert len(row(drawing.text, "request 0")) <= MAX_COLUMNS
    assert len(drawing.svg) < 200_000
    part = trace.timeline(requests=[3, 7], ticks=range(10, 30))
    assert part.text.splitlines()[0].startswith("2 requests over 20 ticks")
    kinds = kinds_of(timeline_of(trace))[7]
    letters = "".join(LETTERS[kind] if kind else " " for tick in range(10, 30) for kind in [kinds[tick]])
    assert row(part.text, "request 7") == letters.strip()
    assert f"{ticks - 20} ticks not drawn" in part.text


@pytest.mark.parametrize("share", [1, 2, 7])
async def test_the_spans_of_a_row_are_its_ticks_in_order_whatever_shares_a_column(
    share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_session(**TIGHT) as session, session.trace() as trace:  # type: ignore[arg-type]
        await session.generate(token_ids=[[number] * 15 for number in range(6)], max_tokens=40)
    timeline = timeline_of(trace)
    monkeypatch.setattr("rekindle.views.timeline.view.MAX_COLUMNS", -(-len(timeline.ticks) // share))
    drawn = view(timeline, None, None)
    assert drawn.share == share
    for course in timeline.courses.values():
        spans, end = list(drawn.spans(course)), 0
        for span in spans:
            assert span.at >= end
            end = span.at + span.ticks
            ends = drawn.ticks.index(span.first), drawn.ticks.index(span.last)
            assert [at // share for at in ends] == [span.at // share, (end - 1) // share]
            if share == 1:
                assert ends == (span.at, end - 1)
                assert span.ticks == 1 or span.kind != "prefill", "each chunk is a box of its own"
        counts: Counter[str] = Counter()
        for span in spans:
            counts[span.kind] += span.ticks
        assert counts == Counter(kind for kind in course.kinds(drawn.ticks) if kind)
        assert sum(span.tokens for span in spans) == sum(cell.tokens for cell in course.cells.values())


async def test_hostile_text_stays_text(byte_tokenizer: Tokenizer) -> None:
    class Refuses(Tokenizer):
        """A tokenizer that cannot encode, and says so with bad words."""

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            raise ValueError(HOSTILE)

    assembly = fake_assembly(fake_limits(), tokenizer=Refuses(byte_tokenizer.backend))
    with fake_session(assembly) as session, session.trace() as trace, suppress(ValueError):
        await session.generate("x")
    drawing = trace.timeline()
    read(drawing.svg, DRAWN)
    assert SPELLED in "".join(ElementTree.fromstring(drawing.svg).itertext())


def test_every_kind_has_a_letter_of_its_own_and_a_meaning() -> None:
    assert len({*LETTERS.values()}) == len(LETTERS)
    assert {*LETTERS} == {*MEANT} == {*get_args(Kind)}
