"""The file of a map keeps its answers after a kill at any byte, and never mixes them with others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import InvalidData, InvalidRequest
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.mapping.answer_file import AnswerFile
from rekindle.mapping.entries import GenerationEntry
from rekindle.mapping.items import Item
from rekindle.mapping.shaping import Shaping, shaping_options
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
    """Return the number of prompt tokens of a session's requests, repeated ones included."""
    return session.stats.scheduler.prompt_tokens


def content_of(session: Session) -> dict[str, str]:
    return Shaping(session._engine).content(None)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_line_has_an_answer_in_its_place(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers = await session.map(token_ids=ITEMS, max_tokens=2, path=path)
    by_place = {line["place"]: line for line in lines(path)}
    assert sorted(by_place) == [0, 1, 2]
    for place, answer in enumerate(answers):
        assert Generation.from_dict(by_place[place]["generation"]) == answer
        assert by_place[place]["prompt"] == ITEMS[place]
        assert by_place[place]["error"] is None
        content = content_of(session)
        assert {"weights", "config", "tokenizer", "chat_template", "numbers", "kernels"} < content.keys()
        assert by_place[place]["keywords"] == {"model": "fake", "max_tokens": 2} | content


def test_a_kill_at_any_byte_costs_one_line_at_most(session: Session, tmp_path: Path) -> None:
    path, keywords, content = tmp_path / "answers.jsonl", {"max_tokens": 1}, content_of(session)
    answers = session.map_sync(token_ids=ITEMS[:2], max_tokens=1, path=path, window=1)
    items = [Item(place, ids, tuple(ids), tuple(ids)) for place, ids in enumerate(ITEMS[:2])]
    whole = path.read_bytes()
    first = whole.index(b"\n")
    for cut in (*range(12), *range(first, len(whole) + 1)):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        file = AnswerFile(path, keywords, GenerationEntry(None))
        file.open(content)
        assert [file.answer(item) for item in items] == [*answers[:complete], *[None] * (2 - complete)]
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:complete])
        file.close()
    file.open(content)
    file.add(items[0], answers[0], content["weights"])
    file.close()
    assert lines(path)[2]["generation"] == lines(path)[0]["generation"]
    assert path.read_bytes()[: len(whole)] == whole


async def test_a_later_call_goes_on_where_it_stopped(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers = await session.map(token_ids=ITEMS, max_tokens=1, path=path, window=1)
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (0, 1, ends[0], ends[0] + 1, ends[1] - 9, ends[1] + 4, len(whole)):
        path.write_bytes(whole[:cut])
        complete, before = whole[:cut].count(b"\n"), requested(session)
        again = await session.map(token_ids=iter(ITEMS), max_tokens=1, path=path, window=1)
        assert again == answers
        assert requested(session) - before == sum(map(len, ITEMS[complete:])), "what was answered is not asked again"
        assert [line["place"] for line in lines(path)] == [0, 1, 2]


async def test_failures_are_written_and_asked_again(short: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    items = [{"name": "a"}, {}, {"name": "b" * 64}]
    for total in (3, 5):
        answers = await short.map(items, template="{name}", max_tokens=1, path=path)
        assert [isinstance(answer, Generation) for answer in answers] == [True, False, False]
        assert len(lines(path)) == total
    assert "PromptTooLong" in lines(path)[-1]["error"] or "PromptTooLong" in lines(path)[-2]["error"]
    items[1] = {"name": "c"}  # it had no prompt, so this is no other
    answers = await short.map(items[:2], template="{name}", max_tokens=1, path=path)
    assert all(isinstance(answer, Generation) for answer in answers)
    before = requested(short)
    assert await short.map(items[:2], template="{name}", max_tokens=1, path=path) == answers
    assert requested(short) == before


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"max_tokens": 3}, "were made with max_tokens=2, and this call has max_tokens=3"),
        ({"max_tokens": 256}, "were made with max_tokens=2, and this call has the default max_tokens"),
        ({"max_tokens": 2, "temperature": 0.5}, "made with the default temperature, and this call has temperature=0.5"),
        ({"max_tokens": 2, "regex": "a" * 200}, "the default regex, and this call has regex='sha256:"),
        ({"max_tokens": 2, "chat_template_kwargs": {"a": 1}}, "has chat_template_kwargs='{\"a\": 1}'"),
    ],
)
async def test_other_keywords_are_refused(short: Session, tmp_path: Path, ask: dict[str, Any], message: str) -> None:
    path = tmp_path / "answers.jsonl"
    await short.map(["a", "b"], max_tokens=2, path=path)
    before = path.read_bytes() + b'{"place": 7, "pro'
    path.write_bytes(before)
    with pytest.raises(InvalidRequest, match=message):
        await short.map(["a", "b"], path=path, **ask)
    assert path.read_bytes() == before


async def test_keywords_that_shape_no_answer_may_differ(short: Session, tmp_path: Path) -> None:
    path, before = tmp_path / "answers.jsonl", requested(short)
    answers = await short.map(["a"], max_tokens=2, path=path)
    after = requested(short)
    assert after > before
    again = await short.map(["a"], max_tokens=2, path=path, cache_salt="x", window=9, errors="raise", progress=False)
    assert (again, requested(short)) == (answers, after)


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
    answers: Any = await short.map(["a", "b"], path=path, **ask)  # type: ignore[call-overload]
    again: Any = await short.map(["a", "b"], path=path, **ask)  # type: ignore[call-overload]
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


async def test_flags_that_are_off_count(short: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    await short.map(["a"], path=path, max_tokens=1)
    with pytest.raises(InvalidRequest, match="the default add_special_tokens, and this call has add_special_tokens=Fa"):
        await short.map(["a"], path=path, max_tokens=1, add_special_tokens=False)


async def test_answers_of_an_earlier_version_are_refused_by_name(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    await session.map(token_ids=ITEMS, max_tokens=1, path=path)
    old = [line | {"keywords": {"model": "fake", "max_tokens": 1}} for line in lines(path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match=r"earlier version of Rekindle, which did not note .*give another path"):
        await session.map(token_ids=ITEMS, max_tokens=1, path=path)
    assert path.read_bytes() == before


def adapter_of(number: int) -> dict[str, Any]:
    array, name = np.full((1, 1), number, np.float32), "model.layers.0.self_attn.q_proj"
    return {"tensors": {f"{name}.lora_{side}.weight": array for side in "AB"}, "config": {"r": 1, "lora_alpha": 1}}


async def test_another_adapter_of_the_same_name_is_refused(session: Session, tmp_path: Path) -> None:
    path, ask = tmp_path / "answers.jsonl", {"token_ids": ITEMS, "max_tokens": 1, "adapter": "a"}
    await session.add_adapter("a", **adapter_of(1))
    answers = await session.map(path=path, **ask)  # type: ignore[call-overload]
    await session.add_adapter("a", **adapter_of(2))
    with pytest.raises(InvalidRequest, match=r"made with adapter='a #\w+', and this call has adapter='a #"):
        await session.map(path=path, **ask)  # type: ignore[call-overload]
    await session.add_adapter("a", **adapter_of(1))
    assert await session.map(path=path, **ask) == answers  # type: ignore[call-overload]


async def test_an_adapter_replaced_in_the_middle_of_a_map_ends_its_answers(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    await session.add_adapter("a", **adapter_of(1))
    pending = session.map(token_ids=ITEMS, max_tokens=1, adapter="a", path=path, window=1)
    assert isinstance((await anext(pending))[1], Generation)
    await session.add_adapter("a", **adapter_of(2))
    outcomes = [outcome async for _, outcome in pending]
    assert all("was a #" in str(outcome) for outcome in outcomes), outcomes
    assert [line["error"] is None for line in lines(path)] == [True, False, False]


async def test_answers_of_other_weights_are_refused_and_each_line_has_its_own(session: Session, tmp_path: Path) -> None:
    path, weights = tmp_path / "answers.jsonl", {"w": np.zeros(3)}
    pending = session.map(token_ids=ITEMS, max_tokens=1, path=path, window=1)
    await anext(pending)
    await session.update_weights(weights)
    assert len([each async for each in pending]) == 2
    versions = [line["keywords"]["weights"] for line in lines(path)]
    assert versions[0] != versions[1] == versions[2]
    with pytest.raises(InvalidRequest, match=r"made with weights='#\w*' of 'fake', and this call has weights='#"):
        await session.map(token_ids=ITEMS, max_tokens=1, path=path)

    other = tmp_path / "of_the_new.jsonl"
    answers = await session.map(token_ids=ITEMS, max_tokens=1, path=other)
    await session.update_weights({"w": np.ones(3)})
    with pytest.raises(InvalidRequest, match="weights="):
        await session.map(token_ids=ITEMS, max_tokens=1, path=other)
    await session.update_weights({"w": np.zeros(3)})
    before = requested(session)
    assert await session.map(token_ids=ITEMS, max_tokens=1, path=other) == answers, "its content is the same"
    assert requested(session) == before


@pytest.mark.parametrize("kind", [Steering, Patch])
async def test_another_vector_is_refused(session: Session, tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "answers.jsonl"
    name = "steer" if kind is Steering else "patch"
    changes = [kind(1, np.full(4, number), tokens=0) for number in (1, 2)]
    options: list[dict[str, Any]] = [{name: (change,)} for change in changes]
    params = [replace(SamplingParams(), **each) for each in options]
    one, other = (shaping_options("m", each, {}) for each in params)
    assert one != other
    assert one == shaping_options("m", params[0], {})
    content = content_of(session)
    file = AnswerFile(path, one, GenerationEntry(None))
    file.open(content)
    file.add(Item(0, [1], (1,), (1,)), InvalidRequest("failed"), content["weights"])
    file.close()
    with pytest.raises(InvalidRequest, match=r"were made with (steer|patch)="):
        AnswerFile(path, other, GenerationEntry(None)).open(content)


async def test_the_template_and_the_tokenizer_count(byte_tokenizer: Tokenizer, tmp_path: Path) -> None:
    path, template = tmp_path / "answers.jsonl", byte_tokenizer.chat_template or ""
    tokenizers = [byte_tokenizer, byte_tokenizer.with_chat_template(template + " "), None]
    contents = []
    for each in tokenizers:
        with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=each)) as session:
            contents.append(content_of(session))
    assert contents[0]["chat_template"] != contents[1]["chat_template"]
    assert contents[0]["tokenizer"] == contents[1]["tokenizer"] != contents[2]["tokenizer"]
    with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=byte_tokenizer)) as session:
        await session.map(["a"], path=path, max_tokens=1)
    other = fake_loaded_engine(fake_limits(max_context=64), tokenizer=tokenizers[1])
    with fake_session(other) as session, pytest.raises(InvalidRequest, match="were made with chat_template='#"):
        await session.map(["a"], path=path, max_tokens=1)
