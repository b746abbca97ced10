"""The picture of a timeline is well-formed, shows every tick of each request, and lets nothing touch or leave it."""

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from rekindle.core.errors import ConfigError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle.views.drawing import CHARACTER, WIDTH
from rekindle.views.records import ChunkRecord, EndRecord, JoinRecord, PlanRecord, StartRecord, TokensRecord
from rekindle.views.timeline.drawing import BAR_HEIGHT, draw
from rekindle.views.timeline.requests import Timeline
from rekindle.views.timeline.view import MAX_COLUMNS, MAX_ROWS, select_view
from rekindle.views.timeline.words import LETTERS, SUMMARY_HEAD
from tests.unit.cards import HOSTILE, SPELLED, picture
from tests.unit.traces import SEEDS, crowded, recorded, traced


def row(text: str, name: str) -> str:
    """Return the letters of one line of a drawing."""
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("tick "))
    (line,) = [line for line in lines if re.match(rf"{name}\b", line)]
    return line[re.search(r"\d", head).start() : head.index(SUMMARY_HEAD)].strip()  # type: ignore[union-attr]


def test_a_request_is_named_with_its_group_where_there_are_several() -> None:
    assert "group" not in traced()[0].timeline().text
    with fake_session(page_size=16, num_pages=9, max_running=2, data=2) as session, session.trace() as trace:
        session.pause_sync()  # so that all of them are there before the first has ended
        handles = [session.submit(token_ids=[token] * 9, max_tokens=50) for token in range(4)]
        session.resume()
        for handle in handles:
            handle.result()
    groups = [request_timeline.group for request_timeline in Timeline(trace.records).requests.values()]
    assert groups.count(0) == groups.count(1) == 2
    drawing = trace.timeline()
    assert drawing.text.count(", group 1") == drawing.text.count(", group 0") == 2
    assert ", group 1</text>" in drawing.svg


def test_any_end_of_a_trace_makes_a_timeline(session: Session) -> None:
    """Check also a trace without its oldest messages."""
    with session.trace() as trace:
        session.generate_sync(token_ids=[[number] * 20 for number in range(4)], max_tokens=6)
    for first in range(len(trace.records)):
        picture(draw(Timeline(trace.records[first:])).svg)
        draw(Timeline(trace.records[:first]))


def test_what_is_to_be_drawn_is_told_by_collections_of_numbers(session: Session) -> None:
    trace: Any = session.trace()
    for wrong in ({"requests": 3}, {"ticks": 3}, {"requests": "3"}):
        with pytest.raises(ConfigError, match=r"must be a collection of numbers, such as .*, got '?3"):
            trace.timeline(**wrong)
    for right in ({}, {"requests": [3]}, {"requests": {3}, "ticks": range(3)}):
        drawing = trace.timeline(**right)
        assert drawing.text == "0 requests over 0 ticks"
        assert list(picture(drawing.svg)) == [], "there is no legend without a row"
        assert "<svg" not in drawing._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("ticks", [5, 99, 100, 403, 2000])
def test_nothing_that_is_said_is_cut_off_or_touches_another(ticks: int) -> None:
    for prompt, cached, how in ((3, 0, "stop"), (1202, 1152, "cancelled"), (10**6, 10**6, "held")):
        begin = JoinRecord(54321, prompt, False), StartRecord(54321, prompt, cached)
        first = PlanRecord(1, (ChunkRecord(54321, 0, 3, True),), (), 0, ())
        rest = [
            fact
            for tick in range(2, ticks + 1)
            for fact in (PlanRecord(tick, (), (54321,), 0, ()), TokensRecord(tick, (54321,)))
        ]
        svg = picture(draw(Timeline(recorded(*begin, first, *rest, EndRecord(54321, how, "")))).svg)
        lines: dict[float, list[tuple[float, float]]] = {}
        for text in svg.iterfind("{*}text"):
            start = float(text.attrib["x"])
            lines.setdefault(float(text.attrib["y"]), []).append((start, start + CHARACTER * len(text.text or "")))
        assert f"{prompt} ({cached} cached) + " in "".join(svg.itertext()) or not cached
        for line in lines.values():
            assert max(end for _, end in line) <= WIDTH
            assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(line)))
        (name,) = svg.iterfind("{*}g/{*}text[.='request 54321']")
        edge = min(float(box.attrib["x"]) for box in svg.iterfind("{*}g/{*}rect"))
        assert float(name.attrib["x"]) + CHARACTER * len("request 54321") <= edge


def test_a_tick_that_compiles_is_cut_and_leaves_the_others_their_bars() -> None:
    took = [0.5, 0.5, 40.0, 0.25, 0.5]
    facts = [PlanRecord(tick, (), (1,), 0, ()) for tick in range(1, 6)]
    timeline = Timeline(recorded(JoinRecord(1, 3, False), *facts))
    for tick, seconds in zip(timeline.ticks.values(), took, strict=True):
        tick.began, tick.ended = tick.planned_at, tick.planned_at + seconds
    svg = draw(timeline).svg
    assert "longest: 40.00 s, cut at 2.50 s" in svg
    bars = [rect for rect in ElementTree.fromstring(svg).iterfind("{*}g/{*}rect") if "fill" in rect.attrib]
    assert [float(bar.attrib["height"]) for bar in bars] == pytest.approx(
        [min(1, seconds / 2.5) * BAR_HEIGHT for seconds in took], abs=0.06
    )
    timeline.ticks[3].ended = timeline.ticks[3].planned_at + 2.0
    assert "longest: 2.00 s<" in draw(timeline).svg


def test_what_does_not_fit_is_counted_and_long_runs_share_columns() -> None:
    ticks, requests = 3 * MAX_COLUMNS - 1, MAX_ROWS + 5
    begins = {number: 1 + number * 7 for number in range(requests)}
    timeline = Timeline(
        recorded(
            *(JoinRecord(number, 3, False) for number in begins),
            *(
                PlanRecord(
                    tick,
                    tuple(ChunkRecord(number, 0, 3, True) for number, begin in begins.items() if begin == tick),
                    tuple(number for number, begin in begins.items() if begin < tick < begin + 100),
                    0,
                    (),
                )
                for tick in range(1, ticks + 1)
            ),
        )
    )
    drawing = draw(timeline)
    assert "5 requests not drawn" in drawing.text
    assert "5 requests not drawn" in drawing.svg
    assert "a column is 3 ticks" in drawing.text
    assert len(row(drawing.text, "request 0")) <= MAX_COLUMNS
    assert len(drawing.svg) < 200_000
    part = draw(timeline, [3, 7], range(40, 60))
    assert part.text.splitlines()[0].startswith("2 requests over 20 ticks")
    kinds = timeline.requests[7].kinds(range(40, 60))
    assert row(part.text, "request 7") == "".join(LETTERS[kind] if kind else " " for kind in kinds).strip()
    assert f"{ticks - 20} ticks not drawn" in part.text


@pytest.mark.parametrize("share", [1, 2, 7])
def test_the_spans_of_a_row_are_its_ticks_in_order_whatever_shares_a_column(
    share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in SEEDS:
        timeline = Timeline(crowded(seed).records)
        monkeypatch.setattr("rekindle.views.timeline.view.MAX_COLUMNS", -(-len(timeline.ticks) // share))
        view = select_view(timeline, None, None)
        assert view.ticks_per_column == share
        for request_timeline in timeline.requests.values():
            spans, end = list(view.spans(request_timeline)), 0
            for span in spans:
                assert span.at >= end
                end = span.at + span.ticks
                ends = view.ticks.index(span.first), view.ticks.index(span.last)
                assert [at // share for at in ends] == [span.at // share, (end - 1) // share]
                if share == 1:
                    assert ends == (span.at, end - 1)
                    assert span.ticks == 1 or span.kind != "prefill", "each chunk is a box of its own"
            counts: Counter[str] = Counter()
            for span in spans:
                counts[span.kind] += span.ticks
            assert counts == Counter(kind for kind in request_timeline.kinds(view.ticks) if kind)
            assert sum(span.tokens for span in spans) == sum(cell.tokens for cell in request_timeline.cells.values())


def test_hostile_text_stays_text(byte_tokenizer: Tokenizer) -> None:
    class Refuses(Tokenizer):
        """A tokenizer that cannot encode, and says so with bad words."""

        def encode(
            self, text: str, add_special_tokens: bool = True, check: Callable[[int], None] | None = None
        ) -> list[int]:
            raise ValueError(HOSTILE)

    loaded_engine = fake_loaded_engine(fake_limits(), tokenizer=Refuses(byte_tokenizer.backend))
    with fake_session(loaded_engine) as session, session.trace() as trace, suppress(ValueError):
        session.generate_sync("x")
    assert SPELLED in "".join(picture(trace.timeline().svg).itertext())
