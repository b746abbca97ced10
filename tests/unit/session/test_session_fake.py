"""Every call of a session gives the right answer on the fake device, under both kinds of loop."""

from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.core.concurrency.mailbox import Waiter
from rekindle.core.errors import InvalidBatch, InvalidRequest, PromptTooLong
from rekindle.core.request.figures import CachedTokens
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.facts.figures import Usage
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE, FakeSettler, expected_tokens, fake_session
from tests.unit.sessions import assert_all_is_free

pytestmark = pytest.mark.anyio

PROMPT = [3, 1, 4]
ENDLESS = 4000


# Answers


async def test_an_answer_says_with_which_seed_it_can_be_drawn_again(session: Session) -> None:
    first = await session.generate(token_ids=PROMPT, max_tokens=8, temperature=1.0)
    again = await session.generate(token_ids=PROMPT, max_tokens=8, temperature=1.0, seed=first.seed)
    assert isinstance(first.seed, int)
    assert (again.token_ids, again.seed) == (first.token_ids, first.seed)
    draws = await session.generate(token_ids=PROMPT, max_tokens=8, n=3, seed=7)
    assert draws[0].seed == 7
    assert len({draw.seed for draw in draws}) == 3
    assert (await session.generate(token_ids=PROMPT, max_tokens=8)).seed is None


@pytest.mark.parametrize("prompt", [PROMPT, [5] * 40])
async def test_no_token_at_all_computes_and_scores_the_prompt_alone(session: Session, prompt: list[int]) -> None:
    whole = await session.generate(token_ids=prompt, max_tokens=1, prompt_logprobs=2)
    generation = await session.generate(token_ids=prompt, max_tokens=0, prompt_logprobs=2)
    assert (generation.token_ids, generation.finish_reason, generation.usage.completion_tokens) == ((), "length", 0)
    assert generation.prompt_logprobs == whole.prompt_logprobs
    assert [piece async for piece in session.stream(token_ids=prompt, max_tokens=0)] == []
    assert_all_is_free(session)


async def test_the_log_probabilities_of_an_answer_add_up(session: Session) -> None:
    generation = await session.generate(token_ids=PROMPT, max_tokens=8, logprobs=2)
    assert generation.logprobs is not None
    assert generation.cumulative_logprob == pytest.approx(sum(each.logprob for each in generation.logprobs))
    assert (await session.generate(token_ids=PROMPT, max_tokens=8)).cumulative_logprob is None


async def test_generate_gives_the_tokens_of_the_model(session: Session) -> None:
    generation = await session.generate(token_ids=PROMPT, max_tokens=5)
    expected = expected_tokens(PROMPT, 5)
    timings = generation.timings
    whole = Generation("", expected, "length", None, None, None, (3, 1, 4), None, Usage(3, 5), timings, CachedTokens())
    assert generation == whole
    assert generation.usage.total_tokens == 8
    assert 0 < timings.queued <= timings.first_token <= timings.total
    assert_all_is_free(session)


async def test_every_way_of_asking_gives_the_same(session: Session) -> None:
    expected = expected_tokens(PROMPT, 5)
    ask: Any = {"token_ids": PROMPT, "max_tokens": 5}
    handle = session.submit(**ask)
    assert (await handle).token_ids == expected
    assert [token async for piece in session.stream(**ask) for token in piece.token_ids] == list(expected)
    assert [token async for piece in session.submit(**ask) for token in piece.token_ids] == list(expected)

    def blocking() -> None:
        assert session.generate_sync(**ask).token_ids == expected
        assert session.submit(**ask).result().token_ids == expected
        assert [token for piece in session.stream_sync(**ask) for token in piece.token_ids] == list(expected)

    blocking()
    await to_thread.run_sync(blocking)


async def test_text_and_messages_are_prompts_and_pieces_join_to_the_text(
    texts: Session, byte_tokenizer: Tokenizer
) -> None:
    ids = byte_tokenizer.encode("hi")
    expected = expected_tokens(ids, 9)
    for prompt in ("hi", [{"role": "user", "content": "hi"}]):
        generation = await texts.generate(prompt, max_tokens=9)
        assert generation.token_ids == expected
        assert str(generation) == generation.text == byte_tokenizer.decode(expected)
        pieces = [str(piece) async for piece in texts.stream(prompt, max_tokens=9)]
        assert "".join(pieces) == generation.text
        assert len(pieces) > 1


async def test_a_list_gives_a_list_in_its_order(session: Session, texts: Session) -> None:
    prompts = [[number] * (number + 1) for number in range(40)]
    generations = await session.generate(token_ids=prompts, max_tokens=7)
    assert [one.token_ids for one in generations] == [expected_tokens(prompt, 7) for prompt in prompts]
    both = texts.generate_sync(["a", "b"], max_tokens=3)
    assert [one.usage.prompt_tokens for one in both] == [1, 1]
    assert len(await texts.generate(["a"], max_tokens=3)) == 1, "a list of one is a list"


async def test_an_end_token_is_part_of_the_output_and_the_reason(session: Session) -> None:
    expected = expected_tokens(PROMPT, 9)
    generation = await session.generate(token_ids=PROMPT, max_tokens=9, stop_token_ids=[expected[4]])
    assert (generation.token_ids, generation.finish_reason) == (expected[:5], "stop")
    assert generation.stopped_by == expected[4]


async def test_a_seed_repeats_the_draws(session: Session) -> None:
    for _ in range(2):
        generation = await session.generate(token_ids=PROMPT, max_tokens=5, temperature=1.0, seed=11)
        assert generation.token_ids == expected_tokens(PROMPT, 5, draw=11)


async def test_a_preempted_request_gives_the_same_as_alone() -> None:
    with fake_session(page_size=16, num_pages=6, max_running=4) as session:
        prompts = [[number] * 15 for number in range(8)]
        generations = await session.generate(token_ids=prompts, max_tokens=60)
        assert session.stats.scheduler.preemptions > 0
        assert [one.token_ids for one in generations] == [expected_tokens(prompt, 60) for prompt in prompts]
        assert_all_is_free(session)


# Bad input


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"token_ids": []}, "token_ids is empty"),
        ({"token_ids": [VOCAB_SIZE]}, "token_ids must be from 0 to 250, got 251"),
        ({"token_ids": PROMPT, "max_tokens": -1}, "max_tokens must be an integer from 0"),
        ({"token_ids": PROMPT, "max_token": 3}, "did you mean max_tokens?"),
        ({"token_ids": PROMPT, "stop": ""}, "stop must be a text or a sequence of texts"),
        ({"token_ids": PROMPT, "stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids must be from 0 to 250, got 251"),
        ({"token_ids": PROMPT, "stop_token_ids": [-1]}, "stop_token_ids must be from 0 to 250, got -1"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": 3}, "a prompt is a str"),
        ({"prompt": "x", "token_ids": PROMPT}, "not both"),
        ({}, "the prompt is None; give a text"),
    ],
)
async def test_bad_input_is_an_error_at_the_call_and_harms_nothing_else(
    session: Session, ask: dict[str, Any], message: str
) -> None:
    other = session.submit(token_ids=PROMPT, max_tokens=50)
    for call in (session.submit, session.stream, session.generate_sync, session.stream_sync):
        with pytest.raises(InvalidRequest, match=message):
            call(**ask)
    with pytest.raises(InvalidRequest, match=message):
        await session.generate(**ask)
    assert (await other).token_ids == expected_tokens(PROMPT, 50)
    assert_all_is_free(session)


async def test_what_only_the_engine_can_see_fails_alone(session: Session, texts: Session) -> None:
    other = session.submit(token_ids=PROMPT, max_tokens=50)
    with pytest.raises(InvalidRequest, match="the model has no tokenizer"):
        await session.generate("text")
    with pytest.raises(PromptTooLong, match="the prompt has 4096 tokens; at most 4095 fit"):
        await session.generate(token_ids=[1] * 4096)
    with pytest.raises(InvalidBatch, match="prompt 1: the prompt has 4096 tokens"):
        await session.generate(token_ids=[PROMPT, [1] * 4096], max_tokens=20)
    assert (await other).token_ids == expected_tokens(PROMPT, 50)
    handle = session.submit("text")
    with pytest.raises(InvalidRequest):
        await handle
    assert "failed after 0 tokens: the model has no tokenizer" in repr(handle)


async def test_one_call_does_not_take_a_list(session: Session) -> None:
    for call in (session.submit, session.enqueue_sync):
        with pytest.raises(InvalidRequest, match="use generate"):
            call(token_ids=[[1], [2]])  # type: ignore[list-item]


# Many at once


async def test_tasks_threads_and_loops_share_a_session() -> None:
    with fake_session(max_running=4, page_size=16, num_pages=20, max_waiting=8) as session:
        expected = {number: expected_tokens([number], 30) for number in range(40)}
        got: dict[int, tuple[int, ...]] = {}

        async def ask(number: int) -> None:
            got[number] = (await session.generate(token_ids=[number], max_tokens=30)).token_ids

        async def several(numbers: range) -> None:
            async with anyio.create_task_group() as tasks:
                for number in numbers:
                    tasks.start_soon(ask, number)

        def ask_sync(number: int) -> None:
            got[number] = session.generate_sync(token_ids=[number], max_tokens=30).token_ids

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(several, range(10))
            tasks.start_soon(to_thread.run_sync, partial(anyio.run, several, range(10, 20), backend="asyncio"))
            tasks.start_soon(to_thread.run_sync, partial(anyio.run, several, range(20, 30), backend="trio"))
            for number in range(30, 40):
                tasks.start_soon(to_thread.run_sync, ask_sync, number)
        assert got == expected
        assert_all_is_free(session)


async def test_two_sessions_in_one_process_do_not_know_each_other(session: Session) -> None:
    with fake_session() as other:
        one, two = session.submit(token_ids=PROMPT, max_tokens=99), other.submit(token_ids=[5], max_tokens=99)
        assert (await two).token_ids == expected_tokens([5], 99)
        assert (await one).token_ids == expected_tokens(PROMPT, 99)
        assert session.stats.scheduler.ended == other.stats.scheduler.ended == 1
    assert (await session.generate(token_ids=PROMPT, max_tokens=5)).token_ids == expected_tokens(PROMPT, 5)


async def test_a_handle_is_awaited_by_several_at_once(held_session: Session, settler: FakeSettler) -> None:
    handle = held_session.submit(token_ids=PROMPT, max_tokens=5)
    got: list[Generation] = []

    async def wait() -> None:
        got.append(await handle)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(wait)
        tasks.start_soon(to_thread.run_sync, lambda: got.append(handle.result()))
        await anyio.wait_all_tasks_blocked()
        settler.release()
    assert [one.token_ids for one in got] == [expected_tokens(PROMPT, 5)] * 4


async def test_a_caller_whose_loop_was_closed_harms_nobody(held_session: Session, settler: FakeSettler) -> None:
    """Check this because a notebook may throw away a loop on which a request still waits."""
    handle = held_session.submit(token_ids=PROMPT, max_tokens=5)
    waiters: list[Any] = []

    async def leave_a_waiter() -> None:
        waiters.append(Waiter())

    for backend in ("asyncio", "trio"):
        await to_thread.run_sync(partial(anyio.run, leave_a_waiter, backend=backend))
    handle.record.pieces._waiting.extend((waiter.wake, 0) for waiter in waiters)
    settler.release()
    assert (await handle).token_ids == expected_tokens(PROMPT, 5)
    assert (await held_session.generate(token_ids=PROMPT, max_tokens=5)).token_ids == expected_tokens(PROMPT, 5)
