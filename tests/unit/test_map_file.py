"""The file of a map has what was answered after a kill at any byte, and is never mixed with other answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.core.errors import InvalidData, InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.mapping.answer_file import AnswerFile
from rekindle.mapping.items import Item
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session

pytestmark = pytest.mark.anyio

ITEMS = [[3, 1], [4], [1, 5]]


@pytest.fixture
def short(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=byte_tokenizer)) as session:
        yield session


def requested(session: Session) -> int:
    """Return how many prompt tokens were asked for, which tells what was asked again."""
    return session.stats.scheduler.prompt_tokens


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_line_has_an_answer_in_its_place(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers = await session.map(token_ids=ITEMS, max_tokens=2, path=path)
    written = {line["place"]: line for line in lines(path)}
    assert sorted(written) == [0, 1, 2]
    for place, answer in enumerate(answers):
        assert Generation.from_dict(written[place]["generation"]) == answer
        assert written[place]["prompt"] == ITEMS[place]
        assert written[place]["error"] is None
        assert written[place]["keywords"] == {"model": "fake", "max_tokens": 2}


def test_a_kill_at_any_byte_costs_one_line_at_most(session: Session, tmp_path: Path) -> None:
    path, keywords = tmp_path / "answers.jsonl", {"model": "fake", "max_tokens": 1}
    answers = session.map_sync(token_ids=ITEMS[:2], max_tokens=1, path=path, window=1)
    items = [Item(place, ids, tuple(ids), tuple(ids)) for place, ids in enumerate(ITEMS[:2])]
    whole = path.read_bytes()
    first = whole.index(b"\n")
    for cut in (*range(12), *range(first, len(whole) + 1)):
        path.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        file = AnswerFile(path, keywords, None)
        file.open()
        assert [file.answer(item) for item in items] == [*answers[:kept], *[None] * (2 - kept)]
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:kept])
        file.close()
    file.open()
    file.add(items[0], answers[0])  # type: ignore[arg-type]
    file.close()
    assert path.read_bytes() == whole + whole[: first + 1]


async def test_a_later_call_goes_on_where_it_stopped(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers = await session.map(token_ids=ITEMS, max_tokens=1, path=path, window=1)
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (0, 1, ends[0], ends[0] + 1, ends[1] - 9, ends[1] + 4, len(whole)):
        path.write_bytes(whole[:cut])
        kept, before = whole[:cut].count(b"\n"), requested(session)
        again = await session.map(token_ids=iter(ITEMS), max_tokens=1, path=path, window=1)
        assert again == answers
        assert requested(session) - before == sum(map(len, ITEMS[kept:])), "what was answered is not asked again"
        assert [line["place"] for line in lines(path)] == [0, 1, 2]


async def test_failures_are_written_and_asked_again(short: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    items = [{"name": "a"}, {}, {"name": "b" * 64}]
    for written in (3, 5):
        answers = await short.map(items, template="{name}", max_tokens=1, path=path)
        assert [isinstance(answer, Generation) for answer in answers] == [True, False, False]
        assert len(lines(path)) == written
    assert "PromptTooLong" in lines(path)[-1]["error"] or "PromptTooLong" in lines(path)[-2]["error"]
    items[1] = {"name": "c"}  # it had no prompt, so this is no other
    answers = await short.map(items[:2], template="{name}", max_tokens=1, path=path)
    assert all(isinstance(answer, Generation) for answer in answers)
    before = requested(short)
    assert await short.map(items[:2], template="{name}", max_tokens=1, path=path) == answers
    assert requested(short) == before


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"max_tokens": 3}, "were made with max_tokens=2, and this call has max_tokens=3"),
        ({"max_tokens": 256}, "were made with max_tokens=2, and this call has the default max_tokens"),
        ({"max_tokens": 2, "temperature": 0.5}, "made with the default temperature, and this call has temperature=0.5"),
        ({"max_tokens": 2, "regex": "a" * 200}, "the default regex, and this call has regex='sha256:"),
        ({"max_tokens": 2, "chat_template_kwargs": {"a": 1}}, "has chat_template_kwargs='{\"a\": 1}'"),
    ],
)
async def test_other_keywords_are_refused(short: Session, tmp_path: Path, ask: dict[str, Any], said: str) -> None:
    path = tmp_path / "answers.jsonl"
    await short.map(["a", "b"], max_tokens=2, path=path)
    before = path.read_bytes() + b'{"place": 7, "pro'
    path.write_bytes(before)
    with pytest.raises(InvalidRequest, match=said):
        await short.map(["a", "b"], path=path, **ask)
    assert path.read_bytes() == before


async def test_keywords_that_shape_no_answer_may_differ(short: Session, tmp_path: Path) -> None:
    path, before = tmp_path / "answers.jsonl", requested(short)
    answers = await short.map(["a"], max_tokens=2, path=path)
    asked = requested(short)
    assert asked > before
    again = await short.map(["a"], max_tokens=2, path=path, cache_salt="x", window=9, errors="raise", progress=False)
    assert (again, requested(short)) == (answers, asked)


async def test_other_items_in_the_same_place_are_refused(short: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]
    await short.map(["a", chat], max_tokens=2, path=path)
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match="at index 0, the answer to another prompt: 'a', but the item is 'c'"):
        await short.map(["c", chat], max_tokens=2, path=path)
    with pytest.raises(InvalidRequest, match="at index 1"):
        await short.map(["a", [{"role": "system", "content": "t"}, chat[1]]], max_tokens=2, path=path)
    assert path.read_bytes() == before
    longer = await short.map(["a", chat, "more"], max_tokens=2, path=path)
    assert len(longer) == len(lines(path)) == 3


@pytest.mark.parametrize("content", [b"notes", b"notes\n", b'{"a": 1}\n', b"[]\n", b'{"place": "x"}\n', b"3\n\n"])
async def test_a_file_of_something_else_stays_as_it_is(session: Session, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=r"line 1 of .* was not written by map\(\)"):
        await session.map(token_ids=ITEMS, path=path)
    assert path.read_bytes() == content


async def test_two_maps_do_not_write_one_file(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = session.map(token_ids=ITEMS, max_tokens=2, path=path)
    await anext(first)
    with pytest.raises(InvalidRequest, match="another map is writing"):
        await session.map(token_ids=ITEMS, max_tokens=2, path=path)
    first.close()
    assert len(await session.map(token_ids=ITEMS, max_tokens=2, path=path)) == 3


async def test_what_ended_is_in_the_file_when_the_loop_is_left(settler: FakeSettler, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with fake_session(fake_loaded_engine(fake_limits(max_running=1), settler=settler)) as session:
        pending = session.map(token_ids=ITEMS, max_tokens=1, path=path, window=3)
        settler.step()
        await anext(pending)
        second = next(iter(session.requests.values()))
        settler.step()
        await second
        pending.close()
        assert [line["place"] for line in lines(path)] == [0, 1]
        assert lines(path)[1]["generation"]["token_ids"] == list(expected_tokens(ITEMS[1], 1))
        settler.release()


async def test_what_a_constrained_answer_means_is_read_again(short: Session, tmp_path: Path) -> None:
    path, ask = tmp_path / "answers.jsonl", {"choice": ["yes", "no"], "max_tokens": 8}
    answers: Any = await short.map(["a", "b"], path=path, **ask)  # type: ignore[arg-type]
    again: Any = await short.map(["a", "b"], path=path, **ask)  # type: ignore[arg-type]
    assert {answer.parsed for answer in answers} <= {"yes", "no"}
    assert [answer.parsed for answer in again] == [answer.parsed for answer in answers]


async def test_tools_that_are_functions_are_the_same_in_every_process(short: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"

    def weather(town: str) -> str:
        """Tell the weather."""
        return town

    chat = [{"role": "user", "content": "a"}]
    await short.map([chat], path=path, tools=[weather], max_tokens=1)
    (line,) = lines(path)
    assert line["keywords"]["tools"].startswith("sha256:")
    renamed: Any = [weather, {"type": "function", "function": {"name": "other"}}]
    with pytest.raises(InvalidRequest, match="were made with tools='sha256:"):
        await short.map([chat], path=path, tools=renamed, max_tokens=1)
    assert len(await short.map([chat], path=path, tools=[weather], max_tokens=1)) == 1
