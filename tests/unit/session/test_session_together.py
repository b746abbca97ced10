"""A loop over a batch has each answer as it ends, or the pieces of all as they come, and leaves nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.core.errors import BatchFailed, InvalidBatch, InvalidRequest, RequestCancelled
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import assert_all_is_free
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

PROMPTS = [[3, 1, 4], [1], [5, 9]]
ENDLESS = 4000


@pytest.fixture
def texts(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=byte_tokenizer)) as session:
        yield session


@pytest.fixture
def one_by_one(settler: FakeSettler) -> Iterator[Session]:
    """Open a session with one slot; a tick settles when it is told to."""
    with fake_session(fake_loaded_engine(fake_limits(max_running=1), settler=settler)) as session:
        yield session


async def assert_free(session: Session) -> None:
    """Check the session for work left over from a batch, once the running ticks have ended."""
    await session.generate(token_ids=PROMPTS, max_tokens=1)
    assert not session.requests
    assert_all_is_free(session)


LOOPS: list[Callable[[Session], Any]] = [
    lambda texts: texts.stream("one", max_tokens=5),
    lambda texts: texts.stream("one", max_tokens=5).parts(),
    lambda texts: texts.stream(["one", "two"], max_tokens=5),
    lambda texts: texts.as_completed(["one", "two"], max_tokens=5),
    lambda texts: texts.map(["one", "two"], max_tokens=5),
]


@pytest.mark.parametrize("begin", LOOPS)
async def test_a_second_loop_over_the_same_items_is_told_that_there_is_one(
    begin: Callable[[Session], Any], settler: FakeSettler, byte_tokenizer: Tokenizer
) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(max_context=64), tokenizer=byte_tokenizer, settler=settler)
    with fake_session(loaded_engine) as texts:
        loop = begin(texts)
        ended: list[int] = []
        refused: list[str] = []

        async def read() -> None:
            try:
                ended.append(len([item async for item in loop]))
            except RuntimeError as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
            await until(lambda: refused, "one of the two loops is refused")  # neither has an item yet
            settler.release()
        assert (len(ended), len(refused)) == (1, 1)
        assert ended[0] > 0
        assert "is read by another loop already" in refused[0]
        await assert_free(texts)


# as_completed


async def test_each_answer_comes_as_it_ends_with_the_place_of_its_prompt(
    one_by_one: Session, settler: FakeSettler
) -> None:
    ended = one_by_one.as_completed(token_ids=PROMPTS, max_tokens=1)
    assert not one_by_one.requests, "the loop has not begun"
    assert "of 3 requests, not begun" in repr(ended)
    settler.step()
    place, answer = await anext(ended)
    assert (place, answer.token_ids) == (0, expected_tokens(PROMPTS[0], 1))
    assert "of 3 requests, 1 ended" in repr(ended)
    assert len(one_by_one.requests) == 2
    settler.release()
    assert [(place, answer.token_ids) async for place, answer in ended] == [
        (place, expected_tokens(PROMPTS[place], 1)) for place in (1, 2)
    ]
    with pytest.raises(StopAsyncIteration):
        await anext(ended)


async def test_a_blocking_loop_gets_them_too(texts: Session) -> None:
    def collect() -> dict[int, str]:
        return {place: answer.text for place, answer in texts.as_completed(["a", "b"], max_tokens=4)}

    answers = await texts.generate(["a", "b"], max_tokens=4)
    assert await to_thread.run_sync(collect) == {place: answer.text for place, answer in enumerate(answers)}
    assert [each async for each in texts.as_completed([])] == []


async def test_all_are_checked_before_anything_is_computed(texts: Session) -> None:
    for loop in (texts.as_completed(["a", "", "b" * 64]), texts.stream(["a", "", "b" * 64])):
        with pytest.raises(InvalidBatch, match=r"2 of 3 prompts .*\n  prompt 1: .*\n  prompt 2: "):
            await anext(loop)
    assert texts.stats.scheduler.prompt_tokens == 0
    with pytest.raises(InvalidRequest, match="takes a list of prompts, but got one"):
        texts.as_completed("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="temperature"):
        texts.as_completed(["a"], temperature=-1)
    with pytest.raises(InvalidRequest, match='errors must be "raise" or "return"'):
        texts.as_completed(["a"], errors="ignore")  # type: ignore[call-overload]


async def test_errors_may_be_returned_in_their_turn(texts: Session) -> None:
    came = [each async for each in texts.as_completed(["a", "", "b"], max_tokens=3, errors="return")]
    assert came[0][0] == 1, "it ended before anything was computed"
    assert {place: type(outcome) for place, outcome in came} == {0: Generation, 1: InvalidRequest, 2: Generation}


@pytest.mark.parametrize("follow", [Session.as_completed, Session.stream])
async def test_the_first_failure_ends_the_loop_and_says_what_had_ended(
    follow: Any, one_by_one: Session, settler: FakeSettler
) -> None:
    loop = follow(one_by_one, token_ids=PROMPTS, max_tokens=1)
    settler.step()
    assert (await anext(loop))[0] == 0
    list(one_by_one.requests.values())[-1].cancel()
    with pytest.raises(BatchFailed, match="request 2 of 3 failed: the request was cancelled") as caught:
        await anext(loop)
    first, second, third = caught.value.results
    assert first.token_ids == expected_tokens(PROMPTS[0], 1)
    assert second is None
    assert isinstance(third, RequestCancelled)
    with pytest.raises(StopAsyncIteration):
        await anext(loop)
    settler.release()
    await assert_free(one_by_one)


async def test_leaving_the_loop_cancels_the_others(session: Session) -> None:
    endless: Any = {"token_ids": [*PROMPTS, [7]], "max_tokens": ENDLESS}
    async for _, _piece in session.stream(**endless):
        break
    await assert_free(session)
    async with aclosing(session.stream(**endless)) as stream:
        await anext(stream)
    assert [piece async for piece in stream] == []
    await assert_free(session)
    with closing(session.as_completed(**endless)) as ended, anyio.move_on_after(0.01):
        await anext(ended)
    assert [answer async for answer in ended] == []
    await assert_free(session)
    pieces = session.stream(**endless)
    await anext(pieces)
    async for _ in pieces:
        break
    assert len(session.requests) == 4, "another loop can go on with it"
    del pieces
    await assert_free(session)


async def test_an_interrupt_says_what_had_ended(one_by_one: Session, settler: FakeSettler) -> None:
    loop = one_by_one.as_completed(token_ids=PROMPTS, max_tokens=1)
    settler.step()
    await anext(loop)
    waits = loop._next()
    next(waits)
    with pytest.raises(KeyboardInterrupt, match="interrupted when 1 of 3 requests had ended") as caught:
        waits.throw(KeyboardInterrupt())
    finished: Any = vars(caught.value)["finished"]
    assert finished[0].token_ids == expected_tokens(PROMPTS[0], 1)
    assert [each.finish_reason for each in finished] == ["length", "cancelled", "cancelled"]
    assert finished.prompts == [tuple(prompt) for prompt in PROMPTS]
    settler.release()
    await assert_free(one_by_one)


# stream of a list


async def test_pieces_come_from_any_of_a_list_each_with_its_place(texts: Session) -> None:
    prompts = ["a", "bc", "d"]
    answers = await texts.generate(prompts, max_tokens=6, logprobs=1)
    answer_texts = dict.fromkeys(range(3), "")
    tokens: dict[int, list[int]] = {place: [] for place in range(3)}
    async for place, piece in texts.stream(prompts, max_tokens=6, logprobs=1):
        answer_texts[place] += piece.text
        tokens[place] += piece.token_ids
        assert piece.logprobs is not None
    assert list(answer_texts.values()) == [answer.text for answer in answers]
    assert [tuple(ids) for ids in tokens.values()] == [answer.token_ids for answer in answers]
    blocking = await to_thread.run_sync(lambda: list(texts.stream_sync(prompts, max_tokens=6)))
    assert "".join(piece.text for place, piece in blocking if place == 1) == answers[1].text


async def test_pieces_of_several_requests_come_side_by_side(settler: FakeSettler) -> None:
    places: set[int] = set()
    with fake_session(fake_loaded_engine(fake_limits(), settler=settler)) as session:
        async with aclosing(session.stream(token_ids=PROMPTS, max_tokens=ENDLESS)) as stream:
            while len(places) < 3:
                settler.step()
                place, piece = await anext(stream)
                assert len(piece.token_ids) == 1
                places.add(place)
            assert len(session.requests) == 3, "none has ended"
