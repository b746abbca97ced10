"""A map with questions gives each item the decisions of `decide`, once, with a file for restarts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle import Choice, Decision, Decisions, InvalidRequest, MapDecisions, Score, YesNo
from rekindle.core.errors import BatchFailed
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.scripted import tokenizer
from tests.unit.session.test_decisions import words
from tests.unit.sessions import assert_all_ends_free

pytestmark = pytest.mark.anyio

TOPIC = Choice("Which topic?", ["sport", "politics"])
QUESTIONS: dict[str, Any] = {"topic": TOPIC, "good": YesNo("Is it good?"), "far": Score("How far?", 3)}
TEXTS = [f"Text number {number} about something." for number in range(5)]


@pytest.fixture
def session() -> Iterator[Session]:
    limits = fake_limits(max_context=512, num_pages=128, page_size=16, max_logprobs=2)
    with fake_session(fake_loaded_engine(limits, tokenizer=words())) as opened_session:
        yield opened_session


def requested(session: Session) -> int:
    return session.stats.scheduler.prompt_tokens


async def test_each_item_has_the_decisions_of_decide(session: Session) -> None:
    several = list(QUESTIONS.values())
    expected = [(await session.decide(text, several)).decisions for text in TEXTS]
    for window in (None, 2):
        answers = await session.map(TEXTS, questions=QUESTIONS, window=window)
        assert isinstance(answers, MapDecisions)
        decided = [each for each in answers if isinstance(each, Decisions)]
        assert [[(d.question, d.probabilities) for d in each] for each in decided] == [
            [(d.question, d.probabilities) for d in each] for each in expected
        ]
    looped = {place: each async for place, each in session.map(iter(TEXTS), questions=TOPIC)}
    assert {place: each[0].answer for place, each in looped.items() if isinstance(each, Decisions)} == {
        place: each[0].answer for place, each in enumerate(expected)
    }
    await assert_all_ends_free(session)


def decisions(likeliest: str) -> Decisions:
    shares = {"sport": 0.7, "politics": 0.3} if likeliest == "sport" else {"sport": 0.3, "politics": 0.7}
    return Decisions((Decision(TOPIC, shares, 1.0),))


@pytest.mark.parametrize(
    ("counts", "remarks"),
    [((300, 0), 1), ((299, 1), 1), ((20, 0), 1), ((19, 0), 0), ((90, 10), 0), ((0, 0), 0), ((0, 50), 1)],
)
async def test_an_option_that_wins_for_nearly_all_items_is_told(counts: tuple[int, int], remarks: int) -> None:
    sport, politics = counts
    several = [*([decisions("sport")] * sport), *([decisions("politics")] * politics)]
    labels = [str(place) for place in range(len(several))]
    results = MapDecisions([*several, InvalidRequest("no")], [*labels, None], ["a"] * (len(several) + 1), {"t": TOPIC})
    assert len(results.one_sided) == remarks
    option = "sport" if sport > politics else "politics"
    for remark in results.one_sided:
        assert remark.startswith(f"t: '{option}' is the likeliest option for {max(counts)} of {sum(counts)} items. ")
        assert "calibrate" in remark
        assert remark in str(results)
        assert "is the likeliest option" in results._repr_mimebundle_()["text/html"]


async def test_a_map_tells_of_one_sided_decisions_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(session._requests._notes, "_write", notes.append)
    monkeypatch.setattr("rekindle.mapping.results.ENOUGH", 2)
    for _ in range(2):
        await session.map(["The same text."] * 3, questions=TOPIC)
    (note,) = [note for note in notes if "likeliest option" in note]
    assert "for 3 of 3 items" in note


async def test_a_state_is_computed_once_for_all_questions(session: Session) -> None:
    questions = {f"q{number}": YesNo(f"Is it {number}?") for number in range(4)}
    state = "A long state. " * 20
    before = session.stats.scheduler.computed_tokens
    (decisions,) = await session.map([state], questions=questions)
    assert isinstance(decisions, Decisions)
    own = decisions.prompt_tokens - 4 * len(state)
    assert session.stats.scheduler.computed_tokens - before <= len(state) + own + 4 * 16


async def test_rows_and_conversations_are_states(session: Session) -> None:
    rows: list[Any] = [{"name": "Ann", "note": "x"}, [{"role": "user", "content": "Hello"}]]
    direct = [await session.decide(row, TOPIC) for row in rows]
    answers = await session.map(rows, questions=TOPIC)
    assert [each[0].prompt_tokens for each in answers if isinstance(each, Decisions)] == [
        each.prompt_tokens for each in direct
    ]
    filled = await session.map(rows[:1], template="{name} wrote {note}", questions=TOPIC)
    assert filled.prompts == ["Ann wrote x"]


async def test_a_later_call_goes_on_where_it_stopped(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    first = await session.map(TEXTS[:3], questions=QUESTIONS, path=path)
    line = json.loads(path.read_text().splitlines()[0])
    assert line["decisions"].keys() == QUESTIONS.keys()
    assert line["decisions"]["topic"]["answer"] in ("sport", "politics")
    before = requested(session)
    renamed = dict(zip("abc", QUESTIONS.values(), strict=True))  # columns do not shape decisions
    assert await session.map(TEXTS[:3], questions=renamed, path=path) == first
    assert requested(session) == before
    longer = await session.map(TEXTS, questions=QUESTIONS, path=path)
    assert (longer[:3], len(longer), requested(session) > before) == (first, 5, True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = await session.map(TEXTS, questions=QUESTIONS, path=path)
    assert [each.answers for each in again if isinstance(each, Decisions)] == [
        each.answers for each in longer if isinstance(each, Decisions)
    ]
    assert path.read_bytes().startswith(whole[: whole[:-1].rindex(b"\n")])
    with pytest.raises(InvalidRequest, match=r"were made with questions=.*give the same, or another path"):
        await session.map(TEXTS, questions={**QUESTIONS, "good": YesNo("Is it bad?")}, path=path)
    with pytest.raises(InvalidRequest, match="were made with questions="):
        await session.map(TEXTS, max_tokens=1, path=path)
    with pytest.raises(InvalidRequest, match="has, at index 0, the answer to another prompt"):
        await session.map(["other"], questions=QUESTIONS, path=path)


async def test_a_failure_stands_in_the_place_of_its_item(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    items: list[Any] = ["good", "x" * 600, {1, 2}, None]
    answers = await session.map(items, questions=QUESTIONS, path=path)
    assert [isinstance(each, InvalidRequest) for each in answers] == [False, True, True, True]
    assert "3 errors" in str(answers)
    with pytest.raises(BatchFailed, match="item 1 failed"):
        await session.map(items, questions=QUESTIONS, errors="raise")
    await assert_all_ends_free(session)


async def test_a_label_of_several_tokens_ends_the_map_at_its_start() -> None:
    loaded = fake_loaded_engine(fake_limits(max_context=512), tokenizer=tokenizer())
    with fake_session(loaded) as letters, pytest.raises(InvalidRequest, match="'Yes' as one token"):
        await letters.map(["any"], questions=QUESTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"questions": QUESTIONS, "max_tokens": 3}, "generates no text, so leave out max_tokens"),
        ({"questions": []}, "questions must be a rekindle.Choice"),
        ({"questions": {"a": 1}}, "questions must be a rekindle.Choice"),
        ({"questions": {"": TOPIC}}, "the name of a question must be a text"),
        ({"questions": [TOPIC, TOPIC]}, "need names for their columns"),
        ({"questions": TOPIC, "adapter": "none"}, "adapter"),
    ],
)
async def test_a_wrong_call_is_refused_at_once(session: Session, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        session.map(TEXTS, **options)


async def test_a_column_for_each_answer_and_its_confidence(session: Session, tmp_path: Path) -> None:
    items: list[Any] = [{"topic": "given", "text": "<b>"}, {"text": "x" * 600, "topic": ""}]
    answers = await session.map(items, template="{text}", questions=QUESTIONS)
    first, second = answers._records()
    assert isinstance(answers[0], Decisions)
    assert first == {
        "item.topic": "given",
        "text": "<b>",
        **{"topic": answers[0][0].answer, "topic.confidence": answers[0][0].confidence},
        **{"good": answers[0][1].answer, "good.confidence": answers[0][1].confidence},
        **{"far": answers[0][2].answer, "far.confidence": answers[0][2].confidence},
        "error": None,
    }
    assert second["error"].startswith("PromptTooLong")
    assert second["good"] is None
    html = answers._repr_mimebundle_()["text/html"]
    assert "&lt;b&gt;" in html
    assert f"{answers[0][0]}\N{NO-BREAK SPACE}({answers[0][0].confidence:.2f})" in html
    answers.to_jsonl(tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0]["decisions"]["good"]["answer"] == answers[0][1].answer
    assert lines[1]["decisions"] is None
    assert str(await session.map([], questions=TOPIC)) == "Decisions: 0 items, 1 question"
